"""PersFL's choices: the direction of its divergence, tied teachers, and the accuracy of the whole grid."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

import personafl as pf
from personafl.algorithms import FedAvg, PersFL, PersFLGD
from personafl.errors import ConfigError
from tests.algorithms.test_persfl import (
    EPOCHS,
    LAMBDAS,
    LR,
    ROUNDS,
    TEMPERATURES,
    M,
    accuracy,
    close,
    column,
    descend,
    global_models,
    logits,
    loss,
    make,
    personal,
    run,
    small,
)

GRID = [(lam, T) for lam in LAMBDAS for T in TEMPERATURES]


def descend_reverse(theta: np.ndarray, part: Any, steps: int, lam: float, T: float, kind: str) -> np.ndarray:
    """Gradient descent on (1 − λ) CE + λ T² D(· , start), the student first in D, in float64."""
    x, y = part[0].astype(np.float64), np.eye(4)[part[1]]
    log_p = log_softmax(logits(theta, x) / T, axis=1)
    for _ in range(steps):
        z = logits(theta, x)
        q = softmax(z / T, axis=1)
        h = log_softmax(z / T, axis=1) - log_p if kind == "kl" else -log_p
        slope = (1 - lam) * (softmax(z, axis=1) - y) + lam * T * q * (h - (q * h).sum(1, keepdims=True))
        theta = theta - LR * np.concatenate([(slope.T @ x).ravel(), slope.sum(0)]) / len(x)
    return theta


@pytest.mark.parametrize(("kind", "divergence"), [(PersFL, "kl"), (PersFLGD, "cross-entropy")])
def test_students_of_the_reverse_direction(kind, divergence):
    data = make()
    algorithm = small(kind, imitations=(0.5,), temperatures=(2.0,), direction="reverse")
    found = personal(run(algorithm, data), data)
    teachers = [min(global_models(data), key=lambda w: loss(w, parts["val"])) for parts in data.values()]
    expected = [
        descend_reverse(w, parts["train"], EPOCHS, 0.5, 2.0, divergence)
        for w, parts in zip(teachers, data.values(), strict=True)
    ]
    close(found, expected)
    forward = [descend(w, p["train"], EPOCHS, 0.5, 2.0) for w, p in zip(teachers, data.values(), strict=True)]
    assert np.abs(found - forward).max() > 3e-3, "the directions should differ here"


def still(algorithm: PersFL, data: Any, **options: Any) -> pf.Run:
    """Stage 1 from 0 at a learning rate of 1e-30: the losses of all global models are the same, to the bit."""
    module = nn.Linear(5, 4)
    module.load_state_dict({"weight": torch.zeros(4, 5), "bias": torch.zeros(4)})
    options = {"threads": 1, "progress": False, "rounds": 4, "eval_every": 0} | options
    federation = pf.Federation.from_clients(data, classes=4)
    return pf.train(federation, module, algorithm, local=pf.Local(lr=1e-30, batch_size=0, steps=1), **options)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(("ties", "kept"), [("later", 4), ("earlier", 0)])
def test_of_tied_teachers_the_one_that_was_asked_for_is_kept(ties, kept, engine):
    data = make()
    del data["c2"]["val"]  # has nothing to choose by: the last one, whatever is done about ties
    found = column(still(small(ties=ties, distill_epochs=0), data, engine=engine), "teacher_round")
    assert found == [4 if m == 2 else kept for m in range(M)]


def test_a_strict_choice_keeps_the_best_where_nothing_ties():
    data = make()
    best = [int(np.argmin([loss(w, parts["val"]) for w in global_models(data)])) for parts in data.values()]
    assert column(run(small(ties="earlier", distill_epochs=0), data), "teacher_round") == best


def test_the_last_model_as_teacher_does_not_ask_about_ties():
    done = still(small(teacher="last", ties="earlier", distill_epochs=0), make())
    assert column(done, "teacher_round") == M * [4]


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_the_accuracy_of_every_point_of_the_grid_is_reported(engine):
    data = make()
    models, done = global_models(data), run(small(report_grid=True, imitations=(1.0, 0.0, 0.5)), data, engine=engine)
    names = [name for name in done.clients().column_names if name.startswith("grid_")]
    assert names == ["grid_0_1", "grid_0_5", "grid_0.5_1", "grid_0.5_5", "grid_1_1", "grid_1_5"]
    found = np.array([column(done, name) for name in names]).T
    for m, parts in enumerate(data.values()):
        teacher = min(models, key=lambda w: loss(w, parts["val"]))
        students = [descend(teacher, parts["train"], EPOCHS, lam, T) for lam, T in GRID]
        np.testing.assert_allclose(found[m], [accuracy(w, parts["val"]) for w in students], atol=1e-6)
        chosen = GRID[int(np.argmax(found[m]))]
        assert (column(done, "imitation")[m], column(done, "temperature")[m]) == chosen
    assert len(np.unique(found)) > 3
    plain = run(small(imitations=(1.0, 0.0, 0.5)), data, engine=engine)
    np.testing.assert_array_equal(personal(done, data), personal(plain, data))
    assert not [name for name in plain.clients().column_names if name.startswith("grid_")]


def test_the_grid_is_unknown_before_the_end_and_without_validation_data():
    data = make()
    del data["c2"]["val"]
    done = run(small(report_grid=True), data, eval_every=3)
    before, after = (np.array(done.clients(r).column("grid_0.5_1")) for r in (3, ROUNDS))
    assert np.isnan(before).all() and np.flatnonzero(np.isnan(after)).tolist() == [2]
    assert column(done, "imitation")[2] == 0.0 and column(done, "temperature")[2] == 1.0


def test_batches_of_a_point_do_not_depend_on_the_rest_of_the_grid():
    """So a run with one point has the student that the grid had there, and can measure it on test data."""
    data = make()
    options: dict[str, Any] = {"threads": 1, "progress": False, "rounds": 2, "eval_every": 0}
    federation, local = pf.Federation.from_clients(data, classes=4), pf.Local(lr=LR, batch_size=4, steps=3)

    def trained(algorithm: FedAvg) -> pf.Run:
        torch.manual_seed(0)
        return pf.train(federation, nn.Linear(5, 4), algorithm, local=local, **options)

    whole = trained(small(report_grid=True))
    for lam, T in GRID:
        alone = trained(small(report_grid=True, imitations=(lam,), temperatures=(T,)))
        name = f"grid_{lam:g}_{T:g}"
        assert column(alone, name) == column(whole, name)
        chose = [
            (a, b) == (lam, T) for a, b in zip(column(whole, "imitation"), column(whole, "temperature"), strict=True)
        ]
        close(personal(alone, data)[chose], personal(whole, data)[chose])


@pytest.mark.parametrize("wrong", [{"direction": "back"}, {"ties": "none"}])
def test_unknown_words_are_refused(wrong):
    with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(wrong))}"):
        run(small(**wrong), make())
