from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

import personafl as pf
from personafl.algorithms import FedAvg, PersFL, PersFLGD
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.settings import Local
from tests.oracles.quadratic import quadratics, train

LR, STEPS, EPOCHS, ROUNDS, M = 0.5, 8, 6, 5, 6
LAMBDAS, TEMPERATURES = (0.0, 0.5, 1.0), (1.0, 5.0)
Part = tuple[np.ndarray, np.ndarray]
Data = dict[str, dict[str, Part]]


# --- the oracle: softmax regression with full batches in float64


def make() -> Data:
    """Every client has a few of 4 classes, and labels of which a part is wrong: later rounds overfit some of them."""
    draw = np.random.default_rng(11)
    centres, out = 1.5 * draw.standard_normal((4, 5)), {}
    for m in range(M):
        parts = {}
        for part, count in (("train", 10 + 3 * m), ("val", 15), ("test", 6)):
            label = draw.choice([m % 4, (m + 1) % 4], count)
            x = (centres[label] + draw.standard_normal((count, 5))).astype(np.float32)
            noisy = np.where(draw.random(count) < (0.5 if m % 2 else 0.1), draw.integers(0, 4, count), label)
            parts[part] = (x, noisy)
        out[f"c{m}"] = parts
    return out


def logits(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ theta[:20].reshape(4, 5).T + theta[20:]


def loss(theta: np.ndarray, part: Part) -> float:
    log_p = log_softmax(logits(theta, part[0]), axis=1)
    return -float(log_p[np.arange(len(log_p)), part[1]].mean())


def accuracy(theta: np.ndarray, part: Part) -> float:
    return float((logits(theta, part[0]).argmax(1) == part[1]).mean())


def descend(theta: np.ndarray, part: Part, steps: int, lam: float = 0.0, T: float = 1.0) -> np.ndarray:
    """Gradient descent on (1 − λ) CE + λ T² KL(start ‖ ·): the slope of T² KL in the logits is T (p_T − q_T)."""
    x, y = part[0].astype(np.float64), np.eye(4)[part[1]]
    q = softmax(logits(theta, x) / T, axis=1)
    for _ in range(steps):
        z = logits(theta, x)
        slope = (1 - lam) * (softmax(z, axis=1) - y) + lam * T * (softmax(z / T, axis=1) - q)
        theta = theta - LR * np.concatenate([(slope.T @ x).ravel(), slope.sum(0)]) / len(x)
    return theta


def global_models(data: Data) -> list[np.ndarray]:
    """The models of fedavg from round 0 on."""
    trains = [parts["train"] for parts in data.values()]
    p = np.array([len(y) for _, y in trains]) / sum(len(y) for _, y in trains)
    models = [np.zeros(24)]
    for _ in range(ROUNDS):
        models.append(sum(p[m] * descend(models[-1], part, STEPS) for m, part in enumerate(trains)))
    return models


def run(algorithm: FedAvg, data: Data, **options: Any) -> pf.Run:
    module = nn.Linear(5, 4)
    module.load_state_dict({"weight": torch.zeros(4, 5), "bias": torch.zeros(4)})
    options = {"threads": 1, "progress": False, "rounds": ROUNDS, "eval_every": 0} | options
    federation = Federation.from_clients(data, classes=4)
    return pf.train(federation, module, algorithm, local=Local(lr=LR, batch_size=0, steps=STEPS), **options)


def vector(net: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).double().numpy()


def close(found: np.ndarray, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def personal(done: pf.Run, data: Data) -> np.ndarray:
    return np.stack([vector(done.personal(client)) for client in data])


def column(done: pf.Run, name: str) -> list[float]:
    return done.clients().column(name).to_pylist()


def small(kind: type[PersFL] = PersFL, **options: Any) -> PersFL:
    return kind(**{"imitations": LAMBDAS, "temperatures": TEMPERATURES, "distill_epochs": EPOCHS} | options)


def test_persfl_and_persfl_gd_give_the_same_models():
    data = make()
    close(personal(run(small(PersFLGD), data), data), personal(run(small(), data), data))


def test_the_teacher_is_the_global_model_of_the_lowest_validation_loss():
    data = make()
    models = global_models(data)
    losses = np.array([[loss(w, parts["val"]) for w in models] for parts in data.values()])
    best = losses.argmin(1)
    assert 0 < best.min() < best.max() == ROUNDS, "early, late and final teachers should occur here"
    for engine in ("stacked", "loop"):
        done = run(small(distill_epochs=0), data, engine=engine)
        assert column(done, "teacher_round") == best.tolist()
        close(personal(done, data), [models[k] for k in best])


def test_the_server_is_that_of_fedavg():
    data = make()
    one, two = vector(run(small(), data).global_model()), vector(run(FedAvg(), data).global_model())
    np.testing.assert_array_equal(one, two)
    close(one, global_models(data)[-1])


def test_the_last_model_as_teacher():
    data = make()
    done = run(small(teacher="last", distill_epochs=0), data)
    assert column(done, "teacher_round") == M * [ROUNDS]
    close(personal(done, data), np.tile(global_models(data)[-1], (M, 1)))


def test_before_the_last_round_the_personalized_model_is_the_teacher_so_far():
    data = make()
    models = global_models(data)[:3]  # what clients have received in the rounds 1 to 3
    table = run(small(), data, eval_every=3).clients(3)
    losses = np.array([[loss(w, parts["val"]) for w in models] for parts in data.values()])
    assert table.column("teacher_round").to_pylist() == losses.argmin(1).tolist()
    tested = [loss(models[k], parts["test"]) for k, parts in zip(losses.argmin(1), data.values(), strict=True)]
    np.testing.assert_allclose(table.column("personal_loss").to_numpy(), tested, rtol=1e-4)
    for name in ("imitation", "temperature"):
        assert np.isnan(table.column(name).to_numpy()).all()


def test_no_imitation_is_plain_fine_tuning_from_the_teacher():
    data = make()
    done = run(small(imitations=(0.0,), temperatures=(5.0,)), data)
    teachers = [min(global_models(data), key=lambda w: loss(w, parts["val"])) for parts in data.values()]
    expected = [descend(w, parts["train"], EPOCHS) for w, parts in zip(teachers, data.values(), strict=True)]
    close(personal(done, data), expected)


def test_the_stacked_grid_is_every_point_alone_and_the_best_on_validation_data():
    data = make()
    models, done, expected = global_models(data), run(small(imitations=(1.0, 0.0, 0.5)), data), []
    grid = [(lam, T) for lam in LAMBDAS for T in TEMPERATURES]
    alone = {(lam, T): personal(run(small(imitations=(lam,), temperatures=(T,)), data), data) for lam, T in grid}
    for m, parts in enumerate(data.values()):
        teacher = min(models, key=lambda w: loss(w, parts["val"]))
        for (lam, T), found in alone.items():
            np.testing.assert_allclose(found[m], descend(teacher, parts["train"], EPOCHS, lam, T), rtol=1e-3, atol=1e-4)
        expected.append(max(alone, key=lambda point: (accuracy(alone[point][m], parts["val"]), -point[0], -point[1])))
    assert list(zip(column(done, "imitation"), column(done, "temperature"), strict=True)) == expected
    assert len(set(expected)) > 1, "clients should choose differently here"
    close(personal(done, data), [alone[point][m] for m, point in enumerate(expected)])


def test_ties_go_to_the_smaller_imitation_then_to_the_smaller_temperature():
    done = run(small(imitations=(0.75, 0.25), temperatures=(25.0, 1.0), distill_epochs=0), make())
    assert column(done, "imitation") == M * [0.25] and column(done, "temperature") == M * [1.0]


def test_a_client_without_validation_data_has_the_last_model_and_the_first_of_the_grid():
    data = make()
    del data["c2"]["val"]
    done = run(small(), data)
    assert column(done, "imitation")[2] == 0.0 and column(done, "temperature")[2] == 1.0
    assert column(done, "teacher_round")[2] == ROUNDS
    close(personal(done, data)[2], descend(global_models(data)[-1], data["c2"]["train"], EPOCHS))


def test_a_client_that_was_never_active_learns_from_the_final_model():
    data = make()
    done = run(small(imitations=(0.0,)), data, rounds=1, activity=0.2)
    idle = np.flatnonzero(np.array(column(done, "activations")) == 0)
    assert len(idle) == M - 1 and [column(done, "teacher_round")[m] for m in idle] == (M - 1) * [1]
    w = vector(done.global_model())
    close(personal(done, data)[idle], [descend(w, data[f"c{m}"]["train"], EPOCHS) for m in idle])


@pytest.mark.parametrize("keep", [True, False])
def test_a_newcomer_learns_from_the_best_model_that_was_kept_or_else_from_the_last(keep):
    data, draw = make(), np.random.default_rng(0)
    done = run(small(imitations=(0.0,), keep_models=keep), data)
    x = draw.standard_normal((40, 5)).astype(np.float32)
    y = np.where(draw.random(40) < 0.5, draw.integers(0, 4, 40), logits(global_models(data)[-1], x).argmax(1))
    split = Federation.from_clients({"newcomer": (x, y)}, splits=(0.8, 0.2, 0.0), classes=4).client("newcomer")
    parts = {name: (split[name][0].numpy(), split[name][1].numpy()) for name in ("train", "val")}
    models = global_models(data)
    best = int(np.argmin([loss(w, parts["val"]) for w in models]))
    assert 0 < best < ROUNDS
    close(vector(done.personalize(x, y)), descend(models[best if keep else -1], parts["train"], EPOCHS))


def test_traffic_is_one_model_up_and_one_down():
    record = run(small(), make()).rounds()[-1]
    assert record["bytes_up"] == record["bytes_down"] == ROUNDS * M * 24 * 4


def test_regression_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="persfl distils class probabilities: it needs a classification task"):
        train(quadratics(), PersFL(), tmp_path, rounds=1)


WRONG = [("imitations", ()), ("imitations", (0.5, 1.5)), ("imitations", (-0.1,)), ("temperatures", ()),
         ("temperatures", (1.0, 0.0)), ("distill_epochs", -1)]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"algorithm\.{name} = .*: must be"):
        PersFL(**{name: value})
