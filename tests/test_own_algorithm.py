"""The algorithm of docs/own-algorithm.md: the page shows the example, the example runs, and it is right."""

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest

import personafl as pf
from tests.oracles.quadratic import personal, quadratics, server, train

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "examples" / "own_algorithm.py"
_spec = importlib.util.spec_from_file_location("own_algorithm", FILE)
own_algorithm = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(own_algorithm)
MeanRegularized = own_algorithm.MeanRegularized


@pytest.mark.parametrize(
    ("lam", "engine"),
    [
        *((lam, "stacked") for lam in (0.0, 0.5, 5.0)),
        *(pytest.param(0.5, engine, marks=pytest.mark.slow) for engine in ("loop", "threaded")),
    ],
)
def test_it_ends_at_the_optimum_of_its_objective(tmp_path, lam, engine):
    """A_i (v_i − z_i) + λ (v_i − mean v) = 0 for all i: a linear system."""
    problem = quadratics(clients=4, d=3)
    eye = np.eye(3)
    inverse = np.linalg.inv(problem.A + lam * eye)
    towards = np.einsum("mij,mjk,mk->mi", inverse, problem.A, problem.z)
    mean = np.linalg.solve(eye - lam * inverse.mean(0), towards.mean(0))
    optimum = towards + lam * inverse @ mean
    runner = train(problem, MeanRegularized(lam=lam), tmp_path, rounds=120, lr=0.08, steps=8, engine=engine)
    np.testing.assert_allclose(personal(runner), optimum, atol=2e-4)
    np.testing.assert_allclose(server(runner), mean, atol=2e-4)
    assert lam == 0.0 or np.abs(optimum - problem.z).max() > 0.05


def test_the_page_shows_the_file():
    assert FILE.read_text("utf-8") in (ROOT / "docs" / "own-algorithm.md").read_text("utf-8")


@pytest.mark.parametrize("shorter", [{"rounds": 2, "seeds": 1}, pytest.param({}, marks=pytest.mark.slow)], ids=str)
def test_the_example_runs(capsys, monkeypatch, tmp_path, shorter):
    compare = pf.compare
    monkeypatch.setattr(pf, "compare", lambda *given, **settings: compare(*given, **settings | shorter))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FILE), run_name="__main__")
    told = capsys.readouterr().out
    assert "mean-regularized" in told and "ditto" in told
