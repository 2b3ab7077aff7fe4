"""Any module, any task: networks as users write them, trained by four algorithms, the same on every engine.

What is measured is what is deployed: the personal model, as plain torch, gives the loss that the run reports.
"""

from __future__ import annotations

import importlib.util
from functools import partial

import numpy as np
import pytest
import torch

import personafl as pf
from tests.modules.cases import CASES

ALGORITHMS = ("fedavg", "ditto", "selffl", "fedamp")
QUICK = {name: ALGORITHMS[i % len(ALGORITHMS)] for i, name in enumerate(CASES)}
LARGE = ("bert", "resnet18", "mobilenetv2")
"""Their second round, which takes two seconds or more, is left to the slow test."""


def trained(case, algorithm, engine, rounds):
    torch.manual_seed(3)
    network = case.network()
    local = pf.Local(lr=case.lr, batch_size=4, steps=2)
    return pf.train(
        case.federation(), network, algorithm, task=case.task, rounds=rounds, local=local, engine=engine, progress=False
    )


def outputs(net, x):
    with torch.no_grad():
        out = net(**x) if isinstance(x, dict) else net(x)
    return out if isinstance(out, torch.Tensor) else out.logits


def check(name, algorithm, rounds):
    case = CASES[name]
    if case.needs and importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    loop, stacked = (trained(case, algorithm, engine, rounds) for engine in ("loop", "stacked"))
    federation = case.federation()
    for client in federation.ids:
        ours, theirs = loop.personal(client), stacked.personal(client)
        assert not any(module.training for module in ours.modules())
        for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=partial("{} {}: {}".format, client, key))
    for key, value in loop.score.items():
        assert stacked.score[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    assert all(np.isfinite(list(loop.score.values())))
    measured_is_deployed(loop, federation, case)


def measured_is_deployed(run, federation, case):
    """The loss that plain torch gives with the personal model is the one in the table."""
    losses = dict(zip(*(run.clients().column(c).to_pylist() for c in ("client", "personal_loss")), strict=True))
    for client in federation.ids:
        x, y = federation.client(client)["test"]
        expected = float(case.loss(outputs(run.personal(client), x), y))
        assert losses[client] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_engines_agree_and_what_is_measured_is_deployed(name):
    check(name, QUICK[name], rounds=1 if name in LARGE else 2)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_trains_every_module(name, algorithm):
    check(name, algorithm, rounds=2)
