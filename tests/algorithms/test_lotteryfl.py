"""LotteryFL against plain numpy and torch in float64, and against FedAvg where nothing is pruned."""

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import FedAvg, LotteryFL
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.oracles.parts import (
    LR,
    PARAMETERS,
    SIZES,
    STEPS,
    data,
    gradient,
    initial,
    model,
    personal,
    start,
    trained,
    vector,
    vectors,
)

WEIGHTS = [name for name in PARAMETERS if name.endswith("weight")]
PRUNABLE = sum(PARAMETERS[name] for name in WEIGHTS)


def accuracy(at, m: int) -> float:
    net = model().double()
    net.load_state_dict(at)
    x, y = (torch.tensor(part) for part in data(m))
    return float((net(x.double()).argmax(1) == y).double().mean())


def pruned(at, mask, rate: float):
    """Without the smallest of the weights that are left, over all layers."""
    sizes = sorted(float(v) for n in WEIGHTS for v in at[n].abs()[mask[n] > 0])
    lowest = sizes[int(rate * len(sizes))]
    return {n: mask[n] * (at[n].abs() >= lowest) if n in WEIGHTS else mask[n] for n in mask}


def oracle(rate: float, target: float, threshold: float, weighted: bool, rounds: int = 5):
    theta, first = initial(), initial()
    masks = [{name: torch.ones_like(value) for name, value in theta.items()} for _ in SIZES]
    p, events = np.array(SIZES) / sum(SIZES) if weighted else np.full(3, 1 / 3), []
    for _ in range(rounds):
        mine = []
        for m in range(3):
            now = {n: v * masks[m][n] for n, v in theta.items()}
            left = sum(float(masks[m][n].sum()) for n in WEIGHTS)
            if accuracy(now, m) > threshold and 1 - left / PRUNABLE < target:
                masks[m] = pruned(now, masks[m], rate)
                now = {n: first[n] * masks[m][n] for n in now}
                events.append(m)
            for _ in range(STEPS):
                slope = gradient(now, m)
                now = {n: v - LR * slope[n] * masks[m][n] for n, v in now.items()}
            mine.append(now)
        for n in theta:
            held = sum(p[m] * masks[m][n] for m in range(3))
            total = sum(p[m] * masks[m][n] * mine[m][n] for m in range(3))
            theta[n] = torch.where(held > 0, total / held.clamp(min=1e-9), theta[n])
    return vector(theta), vectors(mine), vectors(masks), events


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, weights, engine):
    run = trained(LotteryFL(0.3, 0.5, 0.45, weights), tmp_path, rounds=5, engine=engine)
    server, clients, masks, events = oracle(0.3, 0.5, 0.45, weights == "samples")
    assert len(events) >= 4 and len(set(events)) >= 2, "the oracle has to prune, more than once"
    np.testing.assert_array_equal(run.clients.store.get(np.arange(3))["mask"], masks)
    np.testing.assert_allclose(run.server["theta"], server, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(run), clients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("never", [{"threshold": 1.0}, {"target": 0.0}])
def test_without_pruning_it_is_fedavg_bit_for_bit(tmp_path, never, step_by_step):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one, two = (trained(a, tmp_path / a.name, **options) for a in (LotteryFL(**never), FedAvg()))
    assert one.server["theta"].equal(two.server["theta"])
    np.testing.assert_array_equal(personal(one), personal(two))


def test_pruning_goes_on_to_the_target_and_spares_biases(tmp_path):
    """Without a threshold every round prunes a fifth of what is left, until half is gone: 0.8³ is just above."""
    run = trained(LotteryFL(threshold=0.0), tmp_path, rounds=6, clients=1, lr=0.01)
    left, expected = PRUNABLE, []
    while 1 - left / PRUNABLE < 0.5:
        left -= int(0.2 * left)
        expected.append(left)
    mask = run.clients.store.get(np.array([0]))["mask"][0]
    at = dict(zip(PARAMETERS, torch.split(mask, list(PARAMETERS.values())), strict=True))
    assert sum(int(at[name].sum()) for name in WEIGHTS) == expected[-1]
    assert all(at[name].all() for name in PARAMETERS if name not in WEIGHTS)
    own = run.clients.store.get(np.array([0]))
    assert float(run.algorithm.report({"mask": own["mask"][0]}, {})["kept"]) == pytest.approx(expected[-1] / PRUNABLE)


def test_what_is_pruned_stays_0_with_a_momentum_that_is_kept(tmp_path):
    options = {"momentum": 0.9, "weight_decay": 0.01, "optimizer_state": "kept", "lr": 0.05}
    run = trained(LotteryFL(threshold=0.0), tmp_path, rounds=4, **options)
    lost = run.clients.store.get(np.arange(3))["mask"].numpy() == 0
    assert lost.sum() > 3 * 20 and (personal(run)[lost] == 0).all()


def test_who_was_never_active_has_the_global_model(tmp_path):
    run = trained(LotteryFL(threshold=0.0), tmp_path, rounds=2, clients=6, activity=0.2)
    idle = run.active == 0
    np.testing.assert_array_equal(personal(run)[idle], np.tile(run.server["theta"], (idle.sum(), 1)))


@pytest.mark.parametrize("key, value", [("prune_rate", 1.0), ("target", 1.0), ("threshold", 1.5)])
def test_bad_settings_are_one_line(key, value):
    with pytest.raises(ConfigError, match=rf"^algorithm\.{key} = {value}: must be in \[0, 1"):
        LotteryFL(**{key: value})


def test_a_task_without_classes_is_refused(tmp_path):
    fed = Federation.from_clients({"a": {"train": (np.zeros((4, 2), np.float32), np.zeros(4, np.float32))}})
    engine = ENGINES["loop"](Task(nn.Linear(2, 1), "mse"), fed, Local(), seed=0)
    with pytest.raises(ConfigError, match=r"^lotteryfl prunes by validation accuracy: it needs a classification task$"):
        Runner(LotteryFL(), LocalClients(engine), Schedule(), RunFolder(tmp_path), {})
    assert start(LotteryFL(), tmp_path).algorithm._prunable.sum() == PRUNABLE
