"""`ctx.descend`: torch's SGD, whether it is given a gradient or the step's `grad`."""

from types import SimpleNamespace

import pytest
import torch

from personafl.algorithms.base import Context
from personafl.engines.work import StepBatches
from personafl.settings import Local

START, TARGET, ANCHOR = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.1, 0.0, -0.2])


@pytest.mark.parametrize("given", ["tensor", "grad"])
@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("momentum, weight_decay", [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
@pytest.mark.parametrize("lr", [None, 0.05])
def test_descend_is_sgd(given, pulled, momentum, weight_decay, lr):
    """On ½‖θ − target‖², with ½ 0.7 ‖θ − anchor‖² where there is an anchor."""
    one = torch.tensor(1)
    ctx = Context(1, 0.2, Local(lr=0.2, momentum=momentum, weight_decay=weight_decay), one, one, one, one)
    grad = StepBatches(SimpleNamespace(per_sample=None), [None], lambda theta, *rest: theta - TARGET)  # type: ignore[arg-type, list-item]
    carry = {"theta": START.clone()}
    expected = START.clone().requires_grad_()
    optimizer = torch.optim.SGD([expected], lr or 0.2, momentum=momentum, weight_decay=weight_decay)
    for _ in range(4):
        gradient = grad if given == "grad" else grad(carry["theta"])
        ctx.descend(carry, "theta", gradient, lr, proximal=(0.7, ANCHOR) if pulled else None)
        expected.grad = (expected - TARGET + (0.7 * (expected - ANCHOR) if pulled else 0)).detach()
        optimizer.step()
    torch.testing.assert_close(carry["theta"], expected.detach())
