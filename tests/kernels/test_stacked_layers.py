"""A layer with K clients' weights and K·B rows is torch's own layer, client by client."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from personafl.kernels.layers import Frame, replace_layers
from personafl.kernels.stacked_model import StackedModel

CLIENTS, SAMPLES = 3, 4


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)


def flat(found):
    """All tensors of what a layer returns."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for part in found if part is not None for tensor in flat(part)]


def another(x, rows, k):
    """An input of the same shape for client k."""
    if x.is_floating_point():
        return torch.randn(x.shape, dtype=torch.float64).requires_grad_()
    return x.flip(rows).roll(k, -1)


def assert_equals_torch(layer, *inputs, ways=("stacked",), rows=(0,), out_rows=None, **kwargs):
    """Outputs, and gradients of all parameters and inputs, in double precision."""
    layer = layer.double()
    frame = Frame()
    model = StackedModel(replace_layers(layer, frame), frame)
    assert set(model.ways.values()) <= set(ways), model.ways
    trained = {n: p for n, p in layer.named_parameters() if p.requires_grad}
    params = {n: torch.randn(CLIENTS, *p.shape, dtype=torch.float64, requires_grad=True) for n, p in trained.items()}
    own = [[another(x, rows[0], k) for x in inputs] for k in range(CLIENTS)]
    alone = [
        flat(functional_call(layer, {n: p[k] for n, p in params.items()}, tuple(own[k]), kwargs))
        for k in range(CLIENTS)
    ]
    axes = rows * len(inputs) if len(rows) == 1 else rows
    together_in = [torch.cat([own[k][i] for k in range(CLIENTS)], axis) for i, axis in enumerate(axes)]
    frame.enter(None, torch.ones(CLIENTS, SAMPLES), CLIENTS, CLIENTS * SAMPLES)
    with model._holding(params, CLIENTS, SAMPLES):
        together = flat(model.module(*together_in, **kwargs))
    out_rows = out_rows or [rows[0]] * len(together)
    expected = [torch.cat(parts, axis) for parts, axis in zip(zip(*alone, strict=True), out_rows, strict=True)]
    for a, b in zip(together, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    directions = [torch.randn_like(part) for part in expected]
    leaves = [*params.values(), *(x for mine in own for x in mine if x.is_floating_point())]
    slopes = [
        torch.autograd.grad(
            sum((o * d).sum() for o, d in zip(outs, directions, strict=True)), leaves, allow_unused=True
        )
        for outs in (together, expected)
    ]
    for a, b in zip(*slopes, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("between", [(), (5,), (5, 2)])
def test_linear(bias, between):
    assert_equals_torch(nn.Linear(6, 7, bias=bias), torch.zeros(SAMPLES, *between, 6))


def test_linear_with_time_first():
    assert_equals_torch(nn.Linear(6, 7), torch.zeros(5, SAMPLES, 6), rows=(1,))


def test_linear_on_several_rows_of_each_sample():
    assert_equals_torch(nn.Linear(6, 7), torch.zeros(SAMPLES * 5, 6))


def test_bilinear():
    assert_equals_torch(nn.Bilinear(3, 4, 5), torch.zeros(SAMPLES, 2, 3), torch.zeros(SAMPLES, 2, 4))


CONVOLUTIONS = {
    "narrow": dict(in_channels=2, out_channels=4, kernel_size=3),
    "wide": dict(in_channels=8, out_channels=4, kernel_size=3),
    "strided": dict(in_channels=4, out_channels=4, kernel_size=3, stride=2, padding=1),
    "dilated": dict(in_channels=2, out_channels=3, kernel_size=2, dilation=2, bias=False),
    "grouped": dict(in_channels=4, out_channels=8, kernel_size=3, groups=2),
    "depthwise": dict(in_channels=4, out_channels=4, kernel_size=3, groups=4, padding=1),
    "same": dict(in_channels=2, out_channels=4, kernel_size=4, padding="same"),
    "reflected": dict(in_channels=2, out_channels=4, kernel_size=3, padding=1, padding_mode="reflect"),
}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, axes):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    settings = CONVOLUTIONS[name]
    assert_equals_torch(kind(**settings), torch.zeros(SAMPLES, settings["in_channels"], *(6,) * axes))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    "settings", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "bias": False}]
)
def test_transposed_convolutions(settings, axes):
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1]
    assert_equals_torch(kind(4, 6, 3, **settings), torch.zeros(SAMPLES, 4, *(3,) * axes))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(6), (6,)),
        (nn.LayerNorm((5, 6)), (5, 6)),
        (nn.LayerNorm(6, bias=False), (5, 6)),
        (nn.RMSNorm(6), (5, 6)),
        (nn.GroupNorm(2, 4), (4, 32, 33)),  # from by_client.LONG numbers of a client on, one client after another
        (nn.BatchNorm1d(4, track_running_stats=False), (4, 1050)),
        (nn.LayerNorm(64), (65, 64)),
        (nn.LayerNorm(64, bias=False), (65, 64)),
        (nn.GroupNorm(2, 4), (4, 5)),
        (nn.GroupNorm(2, 4), (4, 3, 5)),
        (nn.InstanceNorm1d(4, affine=True), (4, 5)),
        (nn.InstanceNorm2d(4, affine=True), (4, 5, 3)),
        (nn.BatchNorm1d(4, track_running_stats=False), (4,)),
        (nn.BatchNorm1d(4, track_running_stats=False), (4, 5)),
        (nn.BatchNorm2d(4, track_running_stats=False), (4, 5, 3)),
        (nn.PReLU(4), (4, 5)),
    ],
    ids=str,
)
def test_normalization(layer, shape):
    assert_equals_torch(layer, torch.zeros(SAMPLES, *shape), ways=("stacked", "mapped"))


def test_layer_norm_with_time_first():
    assert_equals_torch(nn.LayerNorm(6), torch.zeros(5, SAMPLES, 6), rows=(1,))


@pytest.mark.parametrize("settings", [{}, {"padding_idx": 0}])
@pytest.mark.parametrize("shape", [(), (5,), (5, 2)])
def test_embedding(settings, shape):
    ids = torch.randint(7, (SAMPLES, *shape))
    assert_equals_torch(nn.Embedding(7, 3, **settings), ids)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    assert_equals_torch(nn.EmbeddingBag(7, 3, mode=mode), torch.randint(7, (SAMPLES, 5)))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "settings",
    [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}, {"bias": False}],
    ids=str,
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers(kind, settings, batch_first):
    shape = (SAMPLES, 5, 3) if batch_first else (5, SAMPLES, 3)
    rows = 0 if batch_first else 1
    ends = 2 if kind is nn.LSTM else 1
    layer = kind(3, 4, batch_first=batch_first, **settings)
    assert_equals_torch(layer, torch.zeros(shape), rows=(rows,), out_rows=[rows] + [1] * ends)


@pytest.mark.parametrize("wide", [4, 128])
def test_wide_and_projected_lstm(wide):
    assert_equals_torch(nn.LSTM(3, wide, batch_first=True), torch.zeros(SAMPLES, 5, 3), out_rows=[0, 1, 1])
    assert_equals_torch(nn.LSTM(3, wide, proj_size=2, batch_first=True), torch.zeros(SAMPLES, 5, 3), out_rows=[0, 1, 1])


def test_a_recurrent_layer_with_a_first_state():
    layer, x, h = nn.GRU(3, 4, 2), torch.zeros(5, SAMPLES, 3), torch.zeros(2, SAMPLES, 4)
    assert_equals_torch(layer, x, h, rows=(1, 1), out_rows=[1, 1])
    assert_equals_torch(nn.RNN(3, 4, 2, nonlinearity="relu"), x, h, rows=(1, 1), out_rows=[1, 1])


class FirstStates(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x, h, c):
        return self.lstm(x, (h, c))


def test_an_lstm_with_first_states():
    h = torch.zeros(1, SAMPLES, 4)
    assert_equals_torch(FirstStates(), torch.zeros(5, SAMPLES, 3), h, h, rows=(1, 1, 1), out_rows=[1, 1, 1])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"kdim": 6, "vdim": 10}], ids=str)
def test_attention_to_others(batch_first, need_weights, settings):
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, **settings)
    rows = 0 if batch_first else 1

    def sequence(steps, features):
        return torch.zeros(SAMPLES, steps, features) if batch_first else torch.zeros(steps, SAMPLES, features)

    k, v = sequence(5, settings.get("kdim", 8)), sequence(5, settings.get("vdim", 8))
    out = [rows, 0] if need_weights else [rows]
    assert_equals_torch(layer, sequence(3, 8), k, v, rows=(rows,) * 3, out_rows=out, need_weights=need_weights)


class SelfAttention(nn.Module):
    """With each of the masks that torch knows."""

    def __init__(self, masks, **settings):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **settings)
        self.masks = masks

    def forward(self, x):
        steps, masks = x.shape[1], {}
        if "padding" in self.masks:
            masks["key_padding_mask"] = x[..., 0] > 0.5
        if "causal" in self.masks:
            masks["attn_mask"] = torch.ones(steps, steps).triu(1).bool()
            masks["is_causal"] = True
        if "added" in self.masks:
            masks["attn_mask"] = x[:, :, 0].repeat_interleave(2, 0)[:, None].expand(-1, steps, -1)
        return self.attention(
            x, x, x, average_attn_weights="average" in self.masks, need_weights="average" in self.masks, **masks
        )[0]


@pytest.mark.parametrize("masks", [(), ("padding",), ("causal",), ("padding", "causal"), ("added", "average")], ids=str)
def test_attention_to_itself(masks):
    assert_equals_torch(SelfAttention(masks), torch.zeros(SAMPLES, 5, 8))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_layers(batch_first, norm_first, training):
    x = torch.zeros(SAMPLES, 5, 8) if batch_first else torch.zeros(5, SAMPLES, 8)
    rows = 0 if batch_first else 1
    settings = dict(dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, **settings)
    assert_equals_torch(encoder.train(training), x, rows=(rows,))
    deep = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
    assert_equals_torch(deep.train(training), x, rows=(rows,))
    decoder = nn.TransformerDecoderLayer(8, 2, 16, **settings)
    assert_equals_torch(decoder.train(training), x, x, rows=(rows, rows))


def test_a_frozen_layer_has_one_set_of_weights():
    module = nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 2))
    assert_equals_torch(module, torch.zeros(SAMPLES, 6), ways=("frozen", "stacked"))


def test_a_layer_with_a_frozen_bias():
    layer = nn.Linear(6, 5)
    layer.bias.requires_grad_(False)
    assert_equals_torch(layer, torch.zeros(SAMPLES, 6))


def test_tied_weights():
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    module[2].weight = module[0].weight
    assert_equals_torch(module, torch.zeros(SAMPLES, 6))


def test_a_layer_used_twice():
    layer = nn.Linear(6, 6)
    assert_equals_torch(nn.Sequential(layer, nn.Tanh(), layer), torch.zeros(SAMPLES, 6))


def test_weight_norm_is_mapped():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
    assert_equals_torch(layer, torch.zeros(SAMPLES, 6), ways=("mapped",))
