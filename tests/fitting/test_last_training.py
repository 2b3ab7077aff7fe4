"""The last training, with the validation data: what it may take, and what happens when it cannot be done."""

import signal
import time
from dataclasses import replace

import numpy as np
import pytest

import personafl as pf
from personafl.fitting.budget import Clock
from personafl.fitting.candidates import REFERENCES, Candidate, Outcome, Portfolio
from personafl.fitting.running import Running
from personafl.fitting.search import MARGIN, Attempt, Search
from personafl.fitting.training import Trainer
from tests.fitting.test_fit import QUICK, federation, module

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
