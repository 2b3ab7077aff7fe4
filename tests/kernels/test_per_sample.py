"""Gradients that are clipped by sample: a loop in float64 and Opacus are the references."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from personafl.errors import ConfigError
from personafl.kernels.per_sample import PerSample, normal
from personafl.kernels.task import Batch, Task
from personafl.tasks import Cox


def models():
    torch.manual_seed(0)
    return {
        "linear": nn.Linear(6, 3),
        "mlp": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        "conv": nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
        ),
    }


def batches(clients=3, width=5):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(clients, width, 6, generator=draw), torch.randint(0, 3, (clients, width), generator=draw)
    weight = torch.ones(clients, width)
    weight[1:2, 3:] = 0.0
    weight[2:, :] = 0.0  # a batch may be empty
    expected = torch.tensor([4.0, 3.0, 5.0], dtype=torch.float64)[:clients]
    return Batch(x, y, weight, torch.arange(clients) + 7, expected)


def by_hand(module, theta, x, y, clip):
    """Σ_j g_j min(1, C/‖g_j‖), one sample after another, in double."""
    double = Task(module).module(theta).double().train()
    total = 0.0
    for j in range(len(y)):
        loss = nn.functional.cross_entropy(double(x[j : j + 1].double()), y[j : j + 1])
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(double.parameters()))])
        total = total + flat * min(1.0, clip / float(flat.norm()))
    return total


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_clipped_sums_are_those_of_a_loop_in_double(name, clip):
    module, batch, private = models()[name], batches(), PerSample(clip, 0.0)
    task = Task(module)
    theta = task.theta0 + 0.3 * torch.randn(3, task.size, generator=torch.Generator().manual_seed(2))
    stacked = private.gradient_stacked(task, theta, batch)
    for k in range(3):
        real = int(batch.weight[k].sum())
        one = Batch(batch.x[k, :real], batch.y[k, :real], torch.ones(real), batch.key[k], batch.expected[k : k + 1])
        expected = by_hand(module, theta[k], one.x, one.y, clip) / batch.expected[k] if real else torch.zeros(task.size)
        torch.testing.assert_close(private.gradient(task, theta[k], one).double(), expected.double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(stacked[k].double(), expected.double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", models())
def test_clipped_gradients_are_those_of_opacus(name):
    opacus = pytest.importorskip("opacus", reason="opacus, which is the reference here, is not installed")
    module, batch, clip = models()[name], batches(clients=1), 0.3
    task = Task(module)
    ours = PerSample(clip, 0.0).gradient_stacked(task, task.theta0[None], batch)[0]
    theirs = opacus.GradSampleModule(task.module(task.theta0).train(), loss_reduction="sum")
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=4,
        loss_reduction="mean",
    )  # fmt: skip
    nn.functional.cross_entropy(theirs(batch.x[0]), batch.y[0], reduction="sum").backward()
    optimizer.pre_step()
    expected = torch.cat([p.grad.flatten() for p in theirs.parameters()])
    # Opacus adds 1e-6 to every norm before it divides.
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)


def test_the_noise_is_normal_with_the_stated_spread_and_new_for_every_gradient():
    module = nn.Linear(60, 500)
    task, private = Task(module), PerSample(0.5, 3.0)
    batch = batches()
    empty = Batch(torch.zeros(3, 1, 60), torch.zeros(3, 1).long(), torch.zeros(3, 1), batch.key, batch.expected)
    theta = task.theta0.repeat(3, 1)
    first, second = (private.gradient_stacked(task, theta, empty, number=number).double() for number in (1, 2))
    noise = first * batch.expected[:, None] / 1.5
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 0.001
    for other in (noise[1], (second * batch.expected[:, None] / 1.5)[0]):
        assert abs(np.corrcoef(noise[0].numpy(), other.numpy())[0, 1]) < 4 / np.sqrt(task.size)
    assert normal(batch.key, 8, 1).equal(normal(batch.key, 9, 1)[:, :8])


def test_dropout_is_the_samples_own():
    module = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, 3))
    task, batch, private = Task(module), batches(), PerSample(0.1, 0.0)
    stacked = private.gradient_stacked(task, task.theta0.repeat(3, 1), batch)
    one = Batch(batch.x[0], batch.y[0], torch.ones(5), batch.key[0], batch.expected[:1])
    torch.testing.assert_close(private.gradient(task, task.theta0, one), stacked[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (lambda: Task(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))), r"layer '1' \(BatchNorm1d\) normalizes over"),
        (lambda: Task(nn.Linear(6, 1), Cox()), "couples samples"),
    ],
)
def test_what_has_no_gradient_of_a_sample_is_refused(task, words):
    with pytest.raises(ConfigError, match=words) as refused:
        PerSample(1.0, 1.0).check(task())
    assert "\n" not in str(refused.value)


def test_normalization_that_is_frozen_is_not_refused():
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    module[1].eval()
    PerSample(1.0, 1.0).check(Task(module))
