"""What the command line says of a fit that somebody stopped, and what goes on from there."""

import signal

import pytest
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app
from personafl.errors import RunError
from personafl.fitting.training import Trainer
from personafl.signals import Interrupted
from tests.fitting.test_fit import QUICK, federation, module
from tests.fitting.test_fit_folder import CONFIG

__all__ = ["federation"]


@pytest.mark.parametrize(("first", "says"), [(4, "what was trained is kept. Continue with: personafl fit"),
                                             (1, "before anything was trained far enough")])  # fmt: skip
def test_after_sigterm_nothing_is_chosen_and_the_message_says_what_is_there(tmp_path, monkeypatch, first, says):
    train, calls = Trainer.train, []

    def stopped(self, attempt, until, listeners=()):
        calls.append(attempt)
        if len(calls) == first:
            raise Interrupted(signal.SIGTERM)
        return train(self, attempt, until, listeners)

    (tmp_path / "job.toml").write_text(CONFIG)
    words = ["fit", str(tmp_path / "job.toml"), "--out", str(tmp_path / "fit"), "-a", "ditto", "--trials", "4"]
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train", stopped)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 143 and says in " ".join(done.stderr.split())
    assert not (tmp_path / "fit" / "fit.json").exists()
    assert CliRunner().invoke(app, [*words, "--resume"]).exit_code == 0


def test_demo_fit_that_is_stopped_shows_the_best_and_says_so_by_its_exit_code(tmp_path, monkeypatch):
    train, calls = Trainer.train, []

    def stopped(self, attempt, until, listeners=()):
        calls.append(attempt)
        if len(calls) == 4:
            raise Interrupted()
        return train(self, attempt, until, listeners)

    monkeypatch.setattr(Trainer, "train", stopped)
    done = CliRunner().invoke(app, ["demo", "fit", "--rounds", "3", "--out", str(tmp_path / "fit")])
    assert done.exit_code == 130 and "Report:" in done.output
    assert (tmp_path / "fit" / "report.html").exists()


def test_scores_of_another_measure_are_not_gone_on_with(federation, tmp_path):
    same = {"methods": ["fedavg"], "trials": 3, "out": tmp_path / "fit", **QUICK}
    pf.fit(federation, module(), **same)
    with pytest.raises(RunError, match="holds another fit: its measure differs"):
        pf.fit(federation, module(), task=pf.tasks.Classification(metrics=("f1",)), resume=True, **same)
