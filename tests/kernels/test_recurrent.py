"""The LSTM layer in its three forms (one client, vmap, K clients) against torch's own."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from personafl.errors import ModelError
from personafl.kernels import recurrent, stacking
from personafl.kernels.recurrent import Lstm, WordVectors
from personafl.kernels.task import Batch, Task
from personafl.models import LSTMModel

CLIENTS, SAMPLES, STEPS, FEATURES, HIDDEN, OUTPUTS = 3, 4, 6, 5, 7, 2


class Torchs(nn.Module):
    """What the lstm model is to be, in torch's own layers."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, layers, batch_first=True)
        self.output = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, x):
        return self.output(self.lstm(x)[0][:, -1])


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def reference(task: Task, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs, and the gradient of the mean loss in the order of the task's vector."""
    net, names = Torchs(), []
    with torch.no_grad():
        for name, value in task.split(theta).items():
            layer, _, rest = name.rpartition(".")
            names.append(name if layer == "output" else f"lstm.{rest[:-1]}{int(layer[-1]) - 1}")
            net.get_parameter(names[-1]).copy_(value)
    assert sorted(names) == sorted(n for n, _ in net.named_parameters())
    outputs = net(x)
    nn.functional.cross_entropy(outputs, y).backward()
    return outputs.detach(), torch.cat([net.get_parameter(name).grad.flatten() for name in names])


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A table of word vectors, token ids that end in padding, their vectors, and labels."""
    table = torch.randn(9, FEATURES)
    table[0] = 0
    ids = torch.randint(1, 9, (CLIENTS, SAMPLES, STEPS))
    ids[:, 1, 2:] = 0
    ids[:, 2] = 0
    return table, ids, table[ids], torch.randint(0, OUTPUTS, (CLIENTS, SAMPLES))


@pytest.mark.parametrize("wide", [1, 128], ids=["one after another", "together"])
@pytest.mark.parametrize("form", ["tokens", "vectors"])
def test_one_client_and_many_equal_torchs_lstm(form, wide, monkeypatch):
    monkeypatch.setattr(recurrent, "WIDE", wide)
    table, ids, vectors, y = samples()
    shape = (STEPS,) if form == "tokens" else (STEPS, FEATURES)
    task = Task(LSTMModel(hidden=HIDDEN).build(shape, OUTPUTS, {"embedding": table}))
    theta = 0.7 * torch.randn(CLIENTS, task.size)
    x = ids if form == "tokens" else vectors
    weight, key = torch.ones(CLIENTS, SAMPLES), torch.zeros(CLIENTS, dtype=torch.int64)
    expected = [reference(task, theta[k], vectors[k], y[k]) for k in range(CLIENTS)]
    outputs, gradients = (torch.stack(part) for part in zip(*expected, strict=True))

    def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)

    close(torch.stack([task.predict(theta[k], x[k]) for k in range(CLIENTS)]), outputs)
    one_by_one = [task.gradient(theta[k], Batch(x[k], y[k], weight[k], key[k])) for k in range(CLIENTS)]
    close(torch.stack(one_by_one), gradients)
    assert task.stacks_natively
    close(task.predict_stacked(theta, x, weight), outputs)
    close(task.gradient_stacked(theta, Batch(x, y, weight, key)), gradients)
    task.stacks_natively = False  # by vmap
    close(task.predict_stacked(theta, x, weight), outputs)
    close(task.gradient_stacked(theta, Batch(x, y, weight, key)), gradients)


def test_derivatives_for_many_clients_are_right_in_float64():
    layer = Lstm(3, 2).double()
    names = [n for n, _ in layer.named_parameters()]
    x = torch.randn(2, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    params = [torch.randn(2, *p.shape, dtype=torch.float64, requires_grad=True) for p in layer.parameters()]
    assert torch.autograd.gradcheck(
        lambda x, *params: stacking.forward(layer, dict(zip(names, params, strict=True)), x), (x, *params)
    )


def test_the_layer_under_nested_transforms():
    """Derivatives of derivatives; torch's layer has them in float64, where it is not fused."""
    layer, x = Lstm(3, 2).double(), torch.randn(CLIENTS, SAMPLES, STEPS, 3, dtype=torch.float64)
    weights = {n: torch.randn(CLIENTS, *p.shape, dtype=torch.float64) for n, p in layer.named_parameters()}

    def energy(params, x):
        return functional_call(layer, params, (x,)).square().sum()

    twice = vmap(grad(lambda p, x: sum(g.square().sum() for g in grad(energy)(p, x).values())))(weights, x)
    for k in range(CLIENTS):
        params = {n: w[k].clone().requires_grad_() for n, w in weights.items()}
        first = torch.autograd.grad(energy(params, x[k]), list(params.values()), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), list(params.values()))
        for found, wanted in zip(twice.values(), second, strict=True):
            torch.testing.assert_close(found[k], wanted)


def test_padding_at_the_end_is_read_like_any_other_step():
    """LEAF's way: the output is that of the last step, after the padding, so its length matters."""
    table, ids, _, _ = samples()
    net = LSTMModel(hidden=HIDDEN).build((STEPS,), OUTPUTS, {"embedding": table})
    text = ids[0, :1, :3]
    padded = [nn.functional.pad(text, (0, zeros)) for zeros in (0, 3)]
    vectors = LSTMModel(hidden=HIDDEN).build((STEPS, FEATURES), OUTPUTS)
    vectors.load_state_dict(net.state_dict())
    for tokens in padded:
        torch.testing.assert_close(net(tokens), vectors(table[tokens]))
    assert not torch.allclose(net(padded[0]), net(padded[1]))


def test_a_dropout_layer_between_lstm_layers_goes_by_vmap():
    net = nn.Sequential(Lstm(FEATURES, HIDDEN), nn.Dropout(0.5), nn.Linear(HIDDEN, OUTPUTS), nn.Flatten())
    task = Task(net, "mse")
    assert not task.stacks_natively
    x, y = torch.randn(CLIENTS, SAMPLES, STEPS, FEATURES), torch.randn(CLIENTS, SAMPLES, STEPS * OUTPUTS)
    theta, weight, key = torch.randn(CLIENTS, task.size), torch.ones(CLIENTS, SAMPLES), torch.arange(CLIENTS)
    together = task.gradient_stacked(theta, Batch(x, y, weight, key))
    apart = [task.gradient(theta[k], Batch(x[k], y[k], weight[k], key[k])) for k in range(CLIENTS)]
    torch.testing.assert_close(together, torch.stack(apart), rtol=1e-4, atol=1e-5)


# --- the table of word vectors ---------------------------------------------------------------------------------------


def test_a_task_holds_the_table_once_and_never_changes_it():
    table, ids, _, y = samples()
    before = table.clone()
    net = LSTMModel(hidden=HIDDEN).build((STEPS,), OUTPUTS, {"embedding": table})
    task = Task(net)
    places = {
        layer.table.data_ptr()
        for module in (task.template, task._training, task._inference)
        for layer in module.modules()
        if isinstance(layer, WordVectors)
    }
    assert places == {table.data_ptr()}
    task.check(ids[0], y[0])
    task.gradient(task.theta0, Batch(ids[0], y[0], torch.ones(SAMPLES), torch.tensor(0)))
    assert torch.equal(table, before)


def test_the_table_is_no_part_of_saved_weights():
    table, *_ = samples()
    net = LSTMModel(hidden=HIDDEN).build((STEPS,), OUTPUTS, {"embedding": table})
    assert set(net.state_dict()) == {n for n, _ in net.named_parameters()}


def test_memory_is_planned_for_the_gates_of_every_step():
    table, ids, _, _ = samples()
    task = Task(LSTMModel(hidden=HIDDEN).build((STEPS,), OUTPUTS, {"embedding": table}))
    assert task.activation_size(ids[0]) >= STEPS * (FEATURES + 2 * 5 * HIDDEN)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, STEPS), torch.full((2, STEPS), 9), torch.full((2, STEPS), -1)], ids=["floats", "9", "-1"]
)
def test_token_ids_outside_of_the_table_are_found_before_training(x):
    table, *_ = samples()
    task = Task(LSTMModel(hidden=HIDDEN).build((STEPS,), OUTPUTS, {"embedding": table}))
    with pytest.raises(ModelError, match="fails on a batch of features"):
        task.check(x, torch.tensor([0, 1]))


def test_layers_with_frozen_weights_and_torchs_own_are_left_to_vmap():
    frozen = Lstm(3, 2)
    frozen.bias_hh_l0.requires_grad_(False)
    assert stacking.supports(nn.Sequential(Lstm(3, 2)))
    assert not stacking.supports(nn.Sequential(frozen))
    assert not stacking.supports(nn.LSTM(3, 2))
