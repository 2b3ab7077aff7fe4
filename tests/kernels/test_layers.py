"""Dropout that is a function of a key, and batch normalization that does not see padding."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from personafl.errors import ModelError
from personafl.kernels.layers import Frame, KeyedDropout, WeightedBatchNorm, replace_layers
from personafl.kernels.task import Batch, Task
from personafl.streams import mix, name_key


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def keys(count: int, purpose: str = "test") -> Tensor:
    return torch.from_numpy(mix(name_key(purpose), np.arange(count)).view(np.int64))


def dropped(x: Tensor, key: Tensor, p: float = 0.5, channels: bool = False, layer: int = 1) -> Tensor:
    """What the dropout layer that is called as the `layer`-th in a forward pass makes of x."""
    frame = Frame()
    frame.enter(key, None)
    for _ in range(layer - 1):
        frame.next_call()
    return KeyedDropout(p, frame, channels).train()(x)


def within_chance(share: float, p: float, count: int) -> bool:
    """Five standard deviations of a share of `count` independent draws: wrong once in two million."""
    return abs(share - p) < 5 * math.sqrt(p * (1 - p) / count)


# --- dropout ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_dropout_keeps_its_share_and_the_mean(p):
    ones = torch.ones(100, 1000)
    for key in keys(3):
        out = dropped(ones, key, p)
        assert within_chance((out > 0).float().mean().item(), 1 - p, ones.numel())
        torch.testing.assert_close(out[out > 0].unique(), torch.tensor([1 / (1 - p)]))
        assert within_chance(out.mean().item() * (1 - p), 1 - p, ones.numel())


def test_every_position_is_dropped_as_often_as_any_other():
    """Over many keys, no feature and no sample is favoured."""
    kept = torch.stack([dropped(torch.ones(4, 8), key) > 0 for key in keys(4000)]).float().mean(0)
    assert kept.sub(0.5).abs().max() < 5 * math.sqrt(0.25 / 4000)


def test_the_same_key_gives_the_same_mask():
    x = torch.randn(20, 30)
    assert torch.equal(dropped(x, keys(1)[0]), dropped(x, keys(1)[0]))


def test_masks_of_clients_and_steps_are_unrelated():
    masks = torch.stack([dropped(torch.ones(50, 40), key) > 0 for key in keys(20)]).flatten(1)
    for a in range(20):
        for b in range(a):
            assert within_chance((masks[a] == masks[b]).float().mean().item(), 0.5, 2000), (a, b)


def test_masks_of_neighbouring_keys_are_unrelated():
    masks = [dropped(torch.ones(50, 40), torch.tensor(key)) > 0 for key in range(5)]
    for a in range(5):
        for b in range(a):
            assert within_chance((masks[a] == masks[b]).float().mean().item(), 0.5, 2000), (a, b)


def test_masks_of_layers_are_unrelated():
    masks = [dropped(torch.ones(50, 40), keys(1)[0], layer=layer) > 0 for layer in range(1, 6)]
    for a in range(5):
        for b in range(a):
            assert within_chance((masks[a] == masks[b]).float().mean().item(), 0.5, 2000), (a, b)


def test_two_layers_of_a_net_drop_different_units():
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    frame = Frame()
    net = replace_layers(net, frame).train()
    frame.enter(keys(1)[0], None)
    share = (net(torch.ones(100, 100)) > 0).float().mean().item()
    assert within_chance(share, 0.25, 10_000)


def test_neighbouring_positions_are_unrelated():
    mask = (dropped(torch.ones(200, 500), keys(1)[0]) > 0).flatten()
    for lag in (1, 2, 500):
        same = (mask[lag:] == mask[:-lag]).float().mean().item()
        assert within_chance(same, 0.5, len(mask) - lag)


def test_padding_at_the_end_does_not_move_the_mask():
    key = keys(1)[0]
    assert torch.equal(dropped(torch.ones(8, 30), key)[:5], dropped(torch.ones(5, 30), key))


def test_evaluation_is_the_identity():
    x = torch.randn(5, 6)
    assert torch.equal(KeyedDropout(0.5, Frame(), False).eval()(x), x)
    assert torch.equal(KeyedDropout(0.0, Frame(), False).train()(x), x)
    assert torch.equal(KeyedDropout(1.0, Frame(), False).train()(x), torch.zeros(5, 6))


def test_dropout_without_a_key_is_an_error():
    with pytest.raises(ModelError, match="key"):
        KeyedDropout(0.5, Frame(), False).train()(torch.ones(2, 2))


@pytest.mark.parametrize("layer, axes", [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_channel_dropout_drops_whole_channels(layer, axes):
    frame = Frame()
    drop = replace_layers(layer(0.4), frame).train()
    frame.enter(keys(1)[0], None)
    out = drop(torch.ones(100, 50, *([3] * axes))).flatten(2)
    assert torch.equal(out, out[:, :, :1].expand_as(out))
    kept = out[:, :, 0] > 0
    assert within_chance(kept.float().mean().item(), 0.6, 5000)
    assert 0 < kept.float().mean(0).min() and kept.float().mean(0).max() < 1


@pytest.mark.parametrize("channels", [False, True])
def test_dropout_under_vmap_equals_one_by_one(channels):
    frame = Frame()
    drop = KeyedDropout(0.3, frame, channels).train()

    def client(x: Tensor, key: Tensor) -> Tensor:
        frame.enter(key, None)
        return drop(x)

    x, key = torch.randn(5, 6, 7, 8), keys(5)
    together = vmap(client)(x, key)
    for k in range(5):
        assert torch.equal(together[k], client(x[k], key[k]))


def test_gradients_flow_only_through_kept_units():
    x = torch.ones(10, 10, requires_grad=True)
    out = dropped(x, keys(1)[0], 0.25)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_a_task_draws_masks_by_key_alone():
    """The process's own generator has no say, and the key has."""
    task = Task(nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
    x, y, key = torch.randn(8, 6), torch.randint(3, (8,)), keys(2)
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append([task.loss(task.theta0, Batch(x, y, torch.ones(8), k)).item() for k in key])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


# --- batch normalization ----------------------------------------------------------------------------------------

LAYERS = [
    (nn.BatchNorm1d, (6,)),
    (nn.BatchNorm1d, (6, 5)),
    (nn.BatchNorm2d, (6, 3, 4)),
    (nn.BatchNorm3d, (6, 2, 3, 2)),
]


def normalized(layer: nn.Module, x: Tensor, weight: Tensor | None) -> Tensor:
    frame = Frame()
    frame.enter(None, weight)
    return WeightedBatchNorm(layer, frame)(x)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind, shape", LAYERS)
def test_batch_norm_is_torchs_own_without_padding(kind, shape, affine):
    layer = kind(6, affine=affine, eps=0.01, track_running_stats=False)
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    x = 3 * torch.randn(9, *shape) + 2
    torch.testing.assert_close(normalized(layer, x, torch.ones(9)), layer(x), rtol=1e-4, atol=1e-5)
    if len(shape) > 1:
        torch.testing.assert_close(normalized(layer, x, None), layer(x), rtol=1e-4, atol=1e-5)


def test_batch_norm_of_plain_features_without_weights():
    layer = nn.BatchNorm1d(6, track_running_stats=False)
    x = torch.randn(9, 6)
    torch.testing.assert_close(normalized(layer, x, None), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("filling", [0.0, -50.0, 1e6])
@pytest.mark.parametrize("kind, shape", LAYERS)
def test_batch_norm_ignores_padding(kind, shape, filling):
    layer = kind(6, track_running_stats=False)
    x = torch.randn(9, *shape)
    padded = torch.cat([x, torch.full((4, *shape), filling)])
    weight = torch.tensor([1.0] * 9 + [0.0] * 4)
    torch.testing.assert_close(normalized(layer, padded, weight)[:9], layer(x), rtol=1e-4, atol=1e-5)


def test_batch_norm_under_vmap_uses_each_clients_own_statistics():
    layer, frame = nn.BatchNorm2d(6, track_running_stats=False), Frame()
    norm = WeightedBatchNorm(layer, frame)

    def client(x: Tensor, weight: Tensor) -> Tensor:
        frame.enter(None, weight)
        return norm(x)

    scale = torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1, 1, 1)
    x = scale * torch.randn(3, 8, 6, 2, 2)
    weight = (torch.arange(8) < torch.tensor([8, 5, 2])[:, None]).float()
    out = vmap(client)(x, weight)
    for k, count in enumerate((8, 5, 2)):
        torch.testing.assert_close(out[k, :count], layer(x[k, :count]), rtol=1e-4, atol=1e-4)


# --- swapping ---------------------------------------------------------------------------------------------------


def test_layers_are_swapped_wherever_they_are():
    net = nn.Sequential(
        nn.Linear(2, 2),
        nn.ModuleDict({"a": nn.ModuleList([nn.Dropout(0.1), nn.BatchNorm1d(2, track_running_stats=False)])}),
    )
    names = [name for name, _ in net.named_parameters()]
    swapped = replace_layers(net, Frame())
    assert [type(m).__name__ for m in swapped[1]["a"]] == ["KeyedDropout", "WeightedBatchNorm"]
    assert [name for name, _ in swapped.named_parameters()] == names


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.BatchNorm1d(4, track_running_stats=False),
    ],
    ids=["dropout", "batch norm"],
)
def test_a_layer_that_occurs_twice_is_swapped_twice(layer):
    net = replace_layers(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4), layer), Frame())
    assert type(net[1]) is type(net[3])
