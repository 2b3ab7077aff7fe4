"""Run folders of an earlier version, made by it and kept as they were: they open, report, export and personalize."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app

FOLDER = Path(__file__).parents[1] / "fixtures" / "old_runs"
ALGORITHMS = ("fedavg", "selffl")


@pytest.fixture(params=ALGORITHMS)
def old(request, tmp_path):
    return shutil.copytree(FOLDER / request.param, tmp_path / request.param)


def test_an_old_run_opens_with_its_tables_and_models(old):
    run = pf.load_run(old)
    assert run.complete and len(run.clients()) == 4 and [r["round"] for r in run.rounds()] == [1, 2, 3]
    scores = run.clients().column("personal_accuracy").to_pylist()
    predicted = run.predictions()
    for client, score in zip(run.clients().column("client").to_pylist(), scores, strict=True):
        rows = [row for row in predicted.to_pylist() if row["client"] == client]
        assert len(rows) == 0 or np.mean([row["personal_class"] == row["label"] for row in rows]) == pytest.approx(
            score
        )
        assert run.personal(client)(torch.zeros(1, 64)).shape == (1, 10)


def test_a_newcomer_to_an_old_run_gets_the_model_that_the_old_version_made(old):
    known = np.load(FOLDER / "newcomer.npz")
    net = pf.load_run(old).personalize(known["x"], known["y"])
    theta = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
    assert np.abs(theta).max() > 0.01
    np.testing.assert_allclose(theta, known[old.name], rtol=1e-4, atol=1e-6)  # another processor rounds otherwise


def test_old_runs_are_reported_and_exported(old):
    for words in (["report", str(old)], ["export", str(old), "--client", "client-1"]):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert (old / "report.html").stat().st_size > 10_000
