"""HeteroFL against networks that really are smaller, in plain torch and float64, and against FedAvg."""

from math import ceil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.algorithms import FedAvg, HeteroFL
from personafl.errors import ConfigError
from personafl.kernels.task import Task
from personafl.settings import Local
from personafl.training.job_info import job_info
from tests.oracles.parts import (
    LR,
    PARAMETERS,
    SIZES,
    STEPS,
    data,
    initial,
    model,
    personal,
    start,
    trained,
    vector,
    vectors,
)

RATIOS = (1.0, 0.5, 0.25)


def rows_and_columns(ratio: float) -> dict[str, tuple[slice, ...]]:
    """Which part of each parameter a narrow network has."""
    width = [6, ceil(5 * ratio), ceil(4 * ratio), 3]
    out: dict[str, tuple[slice, ...]] = {}
    for k, name in enumerate(("0", "2", "4")):
        out[f"{name}.weight"] = (slice(width[k + 1]), slice(width[k]))
        out[f"{name}.bias"] = (slice(width[k + 1]),)
    return out


def small_network(
    part: dict[str, torch.Tensor], m: int, ratio: float, scaler: bool, bent: type[nn.Module]
) -> dict[str, torch.Tensor]:
    """A client's network after its steps; hidden layers put out 1/r of what they do."""
    width = [len(part["0.bias"]), len(part["2.bias"])]
    net = nn.Sequential(nn.Linear(6, width[0]), bent(), nn.Linear(*width), bent(), nn.Linear(width[1], 3))
    net.double().load_state_dict(part)
    x, y = (torch.tensor(a) for a in data(m))
    by = ratio if scaler else 1.0
    for _ in range(STEPS):
        net.zero_grad()
        outputs = net[4](net[3](net[2](net[1](net[0](x.double()) / by)) / by))
        F.cross_entropy(outputs, y).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= LR * parameter.grad
    return {name: value.detach() for name, value in net.named_parameters()}


def oracle(ratios, weighted: bool, scaler: bool, bent: type[nn.Module], rounds: int = 3):
    theta = initial()
    p = np.array(SIZES) / sum(SIZES) if weighted else np.full(3, 1 / 3)
    for _ in range(rounds):
        total = {name: torch.zeros_like(value) for name, value in theta.items()}
        weight = {name: torch.zeros_like(value) for name, value in theta.items()}
        mine = []
        for m, ratio in enumerate(ratios):
            at = rows_and_columns(ratio)
            found = small_network({name: theta[name][at[name]] for name in theta}, m, ratio, scaler, bent)
            mine.append({name: torch.zeros_like(value) for name, value in theta.items()})
            for name, value in found.items():
                mine[m][name][at[name]] = value
                total[name][at[name]] += p[m] * value
                weight[name][at[name]] += p[m]
        theta = {n: torch.where(weight[n] > 0, total[n] / weight[n].clamp(min=1e-9), theta[n]) for n in theta}
    return vector(theta), vectors(mine)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(
    ("ratios", "weights", "scaler", "bent"),
    [
        (RATIOS, "equal", True, nn.Tanh),
        (RATIOS, "samples", True, nn.Sigmoid),
        ((0.5, 0.25, 0.25), "equal", False, nn.Sigmoid),
    ],
)
def test_zeros_in_the_vector_are_a_smaller_network_in_plain_torch(tmp_path, ratios, weights, scaler, bent, engine):
    """With nobody at full width, the numbers that nobody has stay as they were. A sigmoid makes 1/2 of the 0 of a
    channel that is not there: what follows it must not be trained on that."""
    first, _, second, _, last = model()
    net = nn.Sequential(first, bent(), second, bent(), last)
    run = trained(HeteroFL(ratios=ratios, weights=weights, scaler=scaler), tmp_path, engine=engine, net=net)
    server, clients = oracle(ratios, weights == "samples", scaler, bent)
    np.testing.assert_allclose(run.server["theta"], server, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(run), clients, rtol=1e-4, atol=1e-5)
    untouched = run.server["theta"].numpy() == vector(initial()).astype(np.float32)
    assert untouched.any() == (max(ratios) < 1)


@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_at_full_width_it_is_fedavg_bit_for_bit(tmp_path, weights):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5, "momentum": 0.5}
    ours, fedavg = HeteroFL(ratios=(1.0,), weights=weights), FedAvg(weights=weights)
    one, two = (trained(a, tmp_path / a.name, **options) for a in (ours, fedavg))
    assert one.server["theta"].equal(two.server["theta"])
    np.testing.assert_array_equal(personal(one), personal(two))


def convolutions(a: int, b: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, a, 3), nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, 2), nn.BatchNorm2d(b, affine=False),
        nn.ReLU(), nn.Flatten(), nn.Linear(b * 9, 5), nn.Sigmoid(), nn.Linear(5, 4),
    )  # fmt: skip


def test_convolutions_are_narrowed_by_channels_also_after_they_are_flattened():
    """A width of 1/2 has 2 of 4 channels, 2 of 3, whose 9 places each are 18 of 27 inputs, and 3 of 5."""
    torch.manual_seed(0)
    wide, narrow = convolutions(4, 3), convolutions(2, 2)
    narrow[7], narrow[9] = nn.Linear(18, 3), nn.Linear(3, 4)
    task, state = Task(wide), dict(wide.named_parameters())
    for name, parameter in narrow.named_parameters():
        parameter.data = state[name].data[tuple(slice(n) for n in parameter.shape)].clone()
    x = np.random.default_rng(0).standard_normal((8, 1, 6, 6)).astype(np.float32)
    algorithm = HeteroFL(ratios=(0.5,)).prepare(job_info(task, 1, Local(), None))
    mask = algorithm._has(0.5, task.theta0)
    assert int(mask.sum()) == sum(p.numel() for p in narrow.parameters())
    outputs = task.predict(task.theta0 * mask, torch.tensor(x))
    torch.testing.assert_close(outputs, narrow.train()(torch.tensor(x)), rtol=1e-4, atol=1e-5)


def test_widths_go_round_the_clients_or_the_groups(tmp_path):
    run = trained(HeteroFL(ratios=(1.0, 0.25)), tmp_path, rounds=1, clients=5)
    sent = run.algorithm.send(run.server, torch.arange(5))
    assert sent.each["ratio"].tolist() == [1.0, 0.25, 1.0, 0.25, 1.0]
    layers = tuple(PARAMETERS.items())
    job = run.clients.job_info
    grouped = type(job)(layers, 3, Local(), True, ("b", "a", "b"), job.kinds, job.shapes)
    by_group = HeteroFL(ratios=(1.0, 0.25), assign="groups").prepare(grouped)
    assert by_group.send(run.server, torch.arange(3)).each["ratio"].tolist() == [0.25, 1.0, 0.25]


def test_a_client_that_was_never_active_has_its_part_of_the_global_model(tmp_path):
    run = trained(HeteroFL(ratios=(0.5, 1.0)), tmp_path, rounds=1, clients=6, activity=0.2)
    theta = run.server["theta"].numpy()
    for m in np.flatnonzero(run.active == 0):
        has = run.algorithm._has(0.5 if m % 2 == 0 else 1.0, run.server["theta"]).numpy()
        np.testing.assert_array_equal(personal(run)[m], theta * has)
        assert has.all() == (m % 2 == 1)


@pytest.mark.parametrize(
    ("settings", "net", "message"),
    [
        ({"ratios": ()}, None, r"algorithm\.ratios = \(\): must be one or more, above 0 and at most 1"),
        ({"ratios": (1.0, 1.5)}, None, r"algorithm\.ratios = \(1\.0, 1\.5\): must be one or more"),
        ({"assign": "size"}, None, r"algorithm\.assign = 'size': must be \"clients\" or \"groups\""),
        ({"assign": "groups"}, None, r"algorithm\.assign = \"groups\": must be \"clients\", the federation has no"),
        ({}, nn.Linear(6, 3), r"heterofl narrows hidden layers, and the model has none"),
        ({}, nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)), r".* cannot narrow LayerNorm"),
    ],
)
def test_bad_settings_and_models_are_one_line(tmp_path, settings, net, message):
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        start(HeteroFL(**settings), tmp_path, net=net)
    assert "\n" not in str(refused.value)
