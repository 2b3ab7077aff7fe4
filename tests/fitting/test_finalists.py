"""Whom clients choose from: never without the best model of all, whether it is a personalized or a global one."""

import math

import numpy as np
import pytest

import personafl as pf
from personafl.fitting.candidates import Candidate, Outcome
from personafl.fitting.finalists import finalists
from personafl.report import report_data
from tests.fitting.test_fit import QUICK, hits, module


def candidate(number: int, method: str, score: float, common: float = math.nan) -> Candidate:
    return Candidate(number, method, {}, {4: Outcome(4, score, common, 1.0, "x")})


REFERENCED = [
    candidate(0, "separate", 0.5),
    candidate(1, "fedavg", 0.55, 0.6),
    candidate(2, "fedavg-ft", 0.7, 0.6),
]


@pytest.mark.parametrize(
    ("best", "label"),
    [
        (candidate(9, "ditto", 0.8, 0.9), "ditto, global"),
        (candidate(9, "ditto", 0.9, 0.8), "ditto"),
        (candidate(9, "fedavg-ft", 0.1, 0.9), "fedavg-ft, global"),
        (candidate(9, "separate", 0.9), "alone"),
    ],
)
def test_the_best_model_of_all_is_among_them_though_others_are_many(best, label):
    others = [candidate(3 + k, name, 0.75, 0.74) for k, name in enumerate(("apfl", "ifca", "selffl", "fedrod"))]
    found = finalists([*REFERENCED, *others, best])
    assert len(found) == 6
    first = max(found, key=lambda model: model.score)
    assert (first.label, first.score) == (label, 0.9)
    assert {"alone", "one model", "fedavg-ft"} <= {model.label for model in found}


def test_of_a_method_the_better_of_its_models_comes_before_the_other():
    found = finalists([*REFERENCED, candidate(3, "ditto", 0.8, 0.85), candidate(4, "apfl", 0.6, 0.2)])
    assert [model.label for model in found[3:]] == ["ditto, global", "apfl", "fedavg"]
    again = finalists([*REFERENCED, candidate(3, "ditto", 0.8, 0.85)])
    assert [model.label for model in again[3:]] == ["ditto, global", "fedavg", "ditto"], "one model twice is no help"


def test_a_fit_whose_best_model_is_a_global_one(tmp_path):
    """Clients that are alike, and few rounds: fine-tuning only harms."""
    alike = pf.partition.Dirichlet(clients=16, alpha=100.0, min_samples=10)
    federation = pf.data.build(pf.data.Digits(), alike, (0.5, 0.25, 0.25), seed=1)
    same = {**QUICK, "rounds": 3}
    made = pf.fit(federation, module(), methods=["selffl"], trials=6, seed=3, out=tmp_path / "fit", **same)
    labels = [model["label"] for model in made.summary["finalists"]]
    place = labels.index("fedavg-ft, global")
    model = made.summary["finalists"][place]
    best = max(o["score"] for trial in made.summary["trials"] for o in trial["outcomes"] if o["score"] is not None)
    assert model["who"] == "global" and model["score"] == best, "the case that is worth a test"
    right = sum(made.clients().column("personal_val_correct").to_pylist())
    assert right / int(federation.sizes("val").sum()) >= best - 1e-9
    assert made.clients().column("personal_correct").to_pylist() == hits(made, federation, "test")
    assert made.weights[:, place].max() > 0
    x, y = federation.client("client-2")["train"]
    assert pf.load_fit(made.path, module=module()).personalize(x.numpy(), y.tolist())(x).shape == (len(x), 10)
    told = report_data([made.path])
    row = told["fit"]["finalists"][place]
    assert told["methods"][row["method"]]["name"] == "fedavg-ft" and np.isfinite(row["score"])
    assert "It is the global model that was best" in (made.path / "chosen.toml").read_text()
