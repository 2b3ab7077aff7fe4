"""The last training, with the validation data: what it may take, and what happens when it cannot be done."""

import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import personafl as pf
from personafl.fitting.budget import Clock
from personafl.fitting.candidates import REFERENCES, Candidate, Outcome, Portfolio
from personafl.fitting.finalists import theta_of
from personafl.fitting.running import Running
from personafl.fitting.search import MARGIN, Attempt, Search
from personafl.fitting.training import Trainer
from tests.fitting.test_fit import QUICK, federation, hits, module

__all__ = ["federation"]

SAME = {"methods": ["ditto"], "trials": 5, "seed": 3, **QUICK}


def test_all_of_its_trainings_have_the_same_end(federation, monkeypatch):
    """Each has the time that those before it left: else six of them could take six times what is left."""
    train, ends = Trainer.train, []

    def slow(self, attempt, until, listeners=()):
        if attempt.again:
            ends.append(until)
            time.sleep(0.2)
        return train(self, attempt, until, listeners)

    monkeypatch.setattr(Trainer, "train", slow)
    assert pf.fit(federation, module(), budget="10m", **SAME).summary["refit"]
    assert len(ends) >= 4 and max(ends) - min(ends) < 0.1


def test_one_that_somebody_stops_is_left_out_and_resume_makes_up_for_it(federation, tmp_path, monkeypatch):
    train, again = Trainer.train, []

    def stopped(self, attempt, until, listeners=()):
        again.append(attempt.again)
        if sum(again) == 2:
            signal.raise_signal(signal.SIGINT)
        return train(self, attempt, until, listeners)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train", stopped)
        cut = pf.fit(federation, module(), out=tmp_path / "fit", **SAME)
    assert cut.summary["stopped"] and not cut.summary["refit"]
    assert "Somebody stopped the fit before it trained the finalists again" in repr(cut)
    assert all(model["folder"] == model["searched"] for model in cut.summary["finalists"])
    whole = pf.fit(federation, module(), out=tmp_path / "fit", resume=True, **SAME)
    assert whole.summary["refit"] and not whole.summary["stopped"]
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "fit" / "candidates").glob("*-again/run.toml")}
    assert len(before) == len({model["folder"] for model in whole.summary["finalists"]})
    more = pf.fit(federation, module(), out=tmp_path / "fit", resume=True, **SAME)
    assert all(file.stat().st_mtime_ns == at for file, at in before.items()), "what was trained again is reused"
    assert more.number == whole.number


def test_one_that_fails_says_why(federation, monkeypatch):
    train = Trainer.train

    def failing(self, attempt, until, listeners=()):
        if attempt.again:
            return Outcome(attempt.rounds, np.nan, np.nan, 0.1, "", "every client diverged")
        return train(self, attempt, until, listeners)

    monkeypatch.setattr(Trainer, "train", failing)
    made = pf.fit(federation, module(), **SAME)
    assert not made.summary["refit"] and "(separate: every client diverged)" in repr(made)


def test_a_client_whose_model_it_spoils_keeps_that_of_the_search(federation, tmp_path, monkeypatch):
    """The samples that it was trained on show it: here a last step that is too long, of one client, in every method."""
    spoiled, row = "client-2", federation.ids.index("client-2")

    def too_long(run, who, ids):
        theta = theta_of(run, who, ids)
        if run.path.name.endswith("-again") and who == "personal":
            theta[row] *= -3
        return theta

    with monkeypatch.context() as patched:
        patched.setattr("personafl.fitting.ending.theta_of", too_long)
        made = pf.fit(federation, module(), out=tmp_path / "fit", **SAME)
    plain = pf.fit(federation, module(), refit=False, **SAME)
    assert made.summary["refit"] and "a model from before that" in repr(made)
    models = made.summary["finalists"]
    assert all((spoiled in model["kept"]) == (model["who"] == "personal") for model in models)
    used = np.flatnonzero(made.weights[row])
    own = [place for place, f in enumerate(used) if models[f]["who"] == "personal"]
    assert own, "the case that is worth a test"
    saved = load_file(tmp_path / "fit" / "models" / "personal.safetensors")
    everywhere = np.flatnonzero(made.weights.any(0)).tolist()
    for fit in (made, pf.load_fit(tmp_path / "fit", module=module())):
        assert fit.clients().column("personal_correct").to_pylist() == hits(fit, federation, "test")
        net = fit.personal(spoiled)
        for place in own:
            ours = getattr(net, "models", [net])[place].weight
            assert torch.equal(ours, plain.finalist(used[place]).personal(spoiled).weight)
            assert not torch.equal(ours, fit.finalist(used[place]).personal(spoiled).weight), "trained again"
            part = f"models.{everywhere.index(used[place])}." if len(everywhere) > 1 else ""
            assert torch.equal(ours, saved[f"{part}weight"][row])


@pytest.fixture(scope="module")
def job(federation):
    return pf.fit(federation, module(), methods=["fedavg"], trials=1, refit=False, **QUICK)._job


@pytest.mark.parametrize(
    ("local", "at_once", "seconds"),
    [
        (pf.Local(steps=10), 1, 5.0),
        (pf.Local(steps=10), 2, 4.0),  # one is longer than all others together
        (pf.Local(epochs=2), 1, None),
    ],
)
def test_what_it_may_take(job, tmp_path, local, at_once, seconds):
    """Side by side it takes as long as the longest; by epochs, more samples are more steps."""
    search = Search(Portfolio(["ditto"], local), local, 6, 0, at_once=at_once)
    trainer = Trainer(replace(job, local=local), tmp_path, search.portfolio)
    running = Running(search, trainer, Clock(60.0), tmp_path, None, None, True)
    took = [Candidate(n, "ditto", {}, {6: Outcome(6, 0.5, np.nan, s, "x")}) for n, s in enumerate((4.0, 1.0))]
    train, val = (int(job.federation.sizes(split).sum()) for split in ("train", "val"))
    wanted = MARGIN * (5.0 * (train + val) / train if seconds is None else seconds)
    assert running._seconds_again([Attempt(c, 6, again=True) for c in took]) == pytest.approx(wanted)


def test_time_that_the_last_training_turns_out_not_to_need_goes_to_the_search(job, tmp_path):
    """Finalists may yet be trained to the end; where they were not, what that would take is not kept from others."""
    search = Search(Portfolio(["ditto"], pf.Local()), pf.Local(), 27, 0)
    running = Running(search, Trainer(job, tmp_path, search.portfolio), Clock(1000.0), tmp_path, None, None, True)
    for number, method in enumerate((*REFERENCES, "ditto")):
        search.put(Candidate(number, method, {}, {3: Outcome(3, 0.5, 0.4, 3.0, "x")}))
    left, longest, now = running._before_the_end(), MARGIN * 4 * 27.0, MARGIN * 4 * 3.0
    assert running._for_attempts() == pytest.approx(left - longest, abs=0.5), "enough for all: the longest are kept"
    running.clock = Clock(1000.0, spent=left - longest)
    rest = running._before_the_end()
    assert running._for_attempts() == pytest.approx((rest - 2 * now) / 4, abs=0.5)
    assert (rest - 2 * now) / 4 > 20.0 > rest - longest, "somebody is trained who was not"


def test_a_first_training_that_takes_long_does_not_end_the_search(job, tmp_path):
    """It also loads what all need. Six times as long is not kept for an end in which there is one finalist, or two."""
    search = Search(Portfolio(["ditto"], pf.Local()), pf.Local(), 6, 0)
    running = Running(search, Trainer(job, tmp_path, search.portfolio), Clock(60.0), tmp_path, None, None, True)
    search.put(Candidate(0, "separate", {}, {1: Outcome(1, 0.5, np.nan, 9.0, "x")}))
    assert search.next(running._for_attempts()).candidate.method == "fedavg"
