"""Run folders of strangers: whatever is in them, every command comes to an end with an answer or with one line."""

import os
import random
import resource
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import personafl as pf
from personafl.cli.gain import _brief
from personafl.cli.watch import _line, _many, _one
from personafl.config import parse
from personafl.errors import PersonaflError
from personafl.fitting.result import is_fit, load_fit
from personafl.jobs import train_config
from personafl.report.data import _made
from personafl.report.page import page
from personafl.report.runs import find_runs
from personafl.runs.export import export
from personafl.runs.run import load_run
from personafl.runs.watch import Watch
from personafl.study.gain import gains, sentence
from personafl.study.gain_check import check, words
from tests.runs.damage import copied, damage

OLD = Path(__file__).parents[1] / "fixtures" / "old_runs"
SETTINGS = {
    "seed": 1, "rounds": 2, "activity": 1.0, "eval_every": 1, "checkpoint_every": 1, "model": "mclr",
    "local": {"lr": 0.1, "steps": 2, "batch_size": 5}, "engine": {"name": "loop", "threads": 1},
}  # fmt: skip
SECONDS, MEGABYTES = 20, 1500
MOST_ADDRESSED = 8 << 30


def federation():
    rng = np.random.default_rng(0)
    data = {}
    for name in ("ann", "bob", "cid"):
        x = rng.normal(size=(24, 4)).astype(np.float32)
        data[name] = (x, (x[:, 0] > 0).astype(np.int64))
    return pf.Federation.from_clients(data, classes=2, splits=(0.5, 0.25, 0.25))


class Stop(BaseException):
    pass


class Cut(pf.Listener):
    """Ends a run before its last evaluation is merged."""

    def round_ended(self, record, seconds):
        if record["round"] == 2:
            raise Stop


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """An old run, runs of two methods, one that was cut, and a fit."""
    folder = tmp_path_factory.mktemp("bases")
    for name in ("selffl", "fedamp"):
        train_config(parse({**SETTINGS, "algorithm": name}), folder / name, federation=federation())
    with pytest.raises(Stop):
        train_config(parse({**SETTINGS, "algorithm": "selffl"}), folder / "cut", False, [Cut()], federation())
    copied(OLD / "selffl", folder / "old")
    pf.fit(federation(), nn.Linear(4, 2), methods=["fedavg"], trials=3, rounds=2, budget="20s", engine="loop",
           threads=1, out=folder / "fit", progress=False)  # fmt: skip
    return folder


# --- what users do with a folder ------------------------------------------------------------------------------------


def opened(folder):
    return load_fit(folder, module=nn.Linear(4, 2)) if is_fit(folder) else load_run(folder)


def reported(folder, base):
    page(_made(find_runs([folder])))


def watched(folder, base):
    watch = Watch([folder])
    for run in watch.look():
        for record in run.news():
            _line(run, record)
        _one(run)
    _many(watch.look())


def exported(folder, base):
    run = opened(folder)
    export(run, run.clients().column("client").to_pylist()[:2], folder / "export")


def personal(folder, base):
    run = opened(folder)
    for client in run.clients().column("client").to_pylist()[:2]:
        run.personal(client)


def personalized(folder, base):
    x = np.zeros((6, 64 if base == "old" else 4), np.float32)
    opened(folder).personalize(x, np.arange(6) % 2)


def gained(folder, base):
    run = opened(folder)
    found = gains(run)
    [_brief(value) for value in found.gain]
    sentence(found, 1.1), words(check(run))


def scored(folder, base):
    run = opened(folder)
    repr(run), run._repr_html_(), run.score
    if isinstance(run, pf.Run):
        run.rounds(), run.predictions(), run.measures, run.global_model()


def resumed(folder, base):
    name = "fedamp" if base == "fedamp" else "selffl"
    train_config(parse({**SETTINGS, "algorithm": name, "rounds": 3}), folder, True, federation=federation())


ACTIONS = (reported, watched, exported, personal, personalized, gained, resumed)


def drive(bases, place, seed):
    """One damaged folder and one command; an error of ours, or None where it went well."""
    rng = random.Random(seed)
    base = rng.choice(["selffl", "selffl", "fedamp", "cut", "old", "fit"])
    action = rng.choice([a for a in ACTIONS if (a is not gained or base in ("selffl", "old", "cut")) and (
        a is not resumed or base in ("selffl", "fedamp", "cut"))])  # fmt: skip
    folder = copied(bases / base, place / "stranger's")
    said = "; ".join(damage(folder, rng) for _ in range(1))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor; and of the clock, for what waits
    signal.alarm(10 * SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            action(folder, base)
            scored(folder, base)
    except PersonaflError as error:
        return error
    except Exception as error:
        raise AssertionError(f"case {seed}: {action.__name__} of {base}, {said}: {error!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    assert not (place / "outside").exists(), f"case {seed}: {said}: written outside"
    return None


def alarm(*_):
    raise AssertionError(f"not done after {SECONDS} s")


def _addressed():
    """Bytes of address space that this process has now."""
    statm = Path("/proc/self/statm")  # Linux has it
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 1 << 40


def cases(bases, place, seeds):
    """Drive them all; how many ended in an error of ours."""
    before = [(number, signal.signal(number, alarm)) for number in (signal.SIGALRM, signal.SIGPROF)]
    memory, limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_AS)
    # What goes wrong here must not take the machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (_addressed() + MOST_ADDRESSED, limit[1]))
    try:
        errors = [error for seed in seeds if (error := drive(bases, place, seed)) is not None]
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024 < MEGABYTES
    assert all(str(error).strip() for error in errors)
    return len(errors)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """What is safe on the disk after a power cut is not asked here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_damaged_folders_end_in_an_answer_or_in_one_line(bases, tmp_path):
    assert 30 < cases(bases, tmp_path, range(150)) < 145


@pytest.mark.slow
def test_ten_thousand_damaged_folders(bases, tmp_path):
    assert 3_000 < cases(bases, tmp_path, range(10_000)) < 9_500
