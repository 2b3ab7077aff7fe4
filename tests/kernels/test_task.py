"""Task: a module as functions of a vector, for one client and for many."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personafl.errors import ModelError
from personafl.kernels.task import Batch, Task
from personafl.tasks.classes import correct, cross_entropy
from personafl.tasks.regression import absolute_error, squared_error
from tests.task_models import (
    BOXES,
    CLASSES,
    IMAGES,
    MODULES,
    Autoencoder,
    Partly,
    Scaled,
    Tokens,
    a_batch,
    assert_stacked_equals_single,
    batch_norm_net,
    cnn,
    keys,
    labels,
    mlp,
    random,
    seeded,
)

# --- gradients --------------------------------------------------------------------------------------------------


def test_linear_regression_has_the_textbook_gradient():
    x, y = random(20, 4), random(20, seed=1)
    task = Task(nn.Linear(4, 1), "mse")
    theta = random(5, seed=2)
    residual = x @ theta[:4] + theta[4] - y
    expected = torch.cat([2 * x.T @ residual / 20, 2 * residual.mean().reshape(1)])
    torch.testing.assert_close(task.gradient(theta, a_batch(x, y)), expected)
    torch.testing.assert_close(task.loss(theta, a_batch(x, y)), residual.square().mean())


def test_softmax_regression_has_the_textbook_gradient():
    x, y = random(20, 4), labels(20)
    task = Task(nn.Linear(4, CLASSES))
    theta = random(task.size, seed=2)
    weight, bias = theta[:12].view(CLASSES, 4), theta[12:]
    error = torch.softmax(x @ weight.T + bias, 1) - F.one_hot(y, CLASSES)
    expected = torch.cat([(error.T @ x / 20).flatten(), error.mean(0)])
    torch.testing.assert_close(task.gradient(theta, a_batch(x, y)), expected)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "dropout"])
def test_gradient_is_that_of_the_module_itself(name):
    make, shape, _ = MODULES[name]
    module = seeded(make)
    x, y = random(7, *shape), labels(7)
    expected = copy.deepcopy(module).train()
    F.cross_entropy(expected(x), y).backward()
    task = Task(module)
    found = task.state_dict(task.gradient(task.theta0, a_batch(x, y)))
    trained = {n: p.grad for n, p in expected.named_parameters() if p.requires_grad}
    assert found.keys() == trained.keys()
    for parameter, gradient in trained.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6)


def test_gradient_works_where_gradients_are_switched_off():
    task = Task(nn.Linear(4, CLASSES))
    batch = a_batch(random(5, 4), labels(5))
    expected = task.gradient(task.theta0, batch)
    with torch.no_grad():
        assert torch.equal(task.gradient(task.theta0, batch), expected)


def test_unused_parameters_have_gradient_zero():
    task = Task(seeded(Partly))
    batch = a_batch(random(5, 4), labels(5))
    gradient = task.gradient(task.theta0, batch)
    assert torch.equal(task.state_dict(gradient)["unused"], torch.zeros(2))
    assert task.state_dict(gradient)["linear.bias"].abs().sum() > 0
    stacked = task.gradient_stacked(task.theta0[None], Batch(batch.x[None], batch.y[None], torch.ones(1, 5), keys(1)))
    torch.testing.assert_close(stacked[0], gradient)


def test_a_scalar_parameter_has_a_gradient():
    module = seeded(Scaled)
    x, y = random(5, 4), labels(5)
    F.cross_entropy(module(x), y).backward()
    task = Task(module)
    assert task.names[0] == "temperature"
    torch.testing.assert_close(task.gradient(task.theta0, a_batch(x, y))[0], module.temperature.grad)


def test_extra_tensors_reach_the_objective_of_each_client():
    """Distillation needs a teacher's outputs: an objective takes what else it needs by name."""

    def distil(outputs: Tensor, y: Tensor, teacher: Tensor) -> Tensor:
        return (outputs - teacher).square().sum(-1)

    for module, shape in ((seeded(mlp), BOXES), (seeded(cnn), IMAGES)):
        task = Task(module)
        x, y, teacher = random(2, 5, *shape), labels(2, 5), random(2, 5, CLASSES, seed=4)
        stacked = Batch(x, y, torch.ones(2, 5), keys(2))
        theta = torch.stack([task.theta0, task.theta0 + 0.1])
        found = task.gradient_stacked(theta, stacked, distil, teacher=teacher)
        for k in range(2):
            mine = task.gradient(theta[k], a_batch(x[k], y[k]), distil, teacher=teacher[k])
            torch.testing.assert_close(found[k], mine, rtol=1e-4, atol=1e-5)


# --- losses and metrics -----------------------------------------------------------------------------------------


def test_losses_are_torchs_own_for_each_sample():
    outputs, y = random(6, CLASSES), labels(6)
    torch.testing.assert_close(cross_entropy(outputs, y), F.cross_entropy(outputs, y, reduction="none"))
    targets = random(6, CLASSES, seed=3)
    torch.testing.assert_close(squared_error(outputs, targets), (outputs - targets).square().mean(1))
    torch.testing.assert_close(absolute_error(outputs, targets), (outputs - targets).abs().mean(1))
    assert torch.equal(correct(outputs, outputs.argmax(1)), torch.ones(6))
    assert torch.equal(correct(outputs, (outputs.argmax(1) + 1) % CLASSES), torch.zeros(6))


def test_a_sequence_is_the_mean_over_its_places():
    outputs, y = random(6, 5, CLASSES), labels(6, 5)
    expected = F.cross_entropy(outputs.transpose(1, 2), y, reduction="none").mean(1)
    torch.testing.assert_close(cross_entropy(outputs, y), expected)
    torch.testing.assert_close(correct(outputs, y), (outputs.argmax(-1) == y).float().mean(1))


def test_cross_entropy_of_large_outputs_is_finite():
    outputs = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    torch.testing.assert_close(cross_entropy(outputs, torch.tensor([0, 0])), torch.tensor([0.0, 1e4]))


def test_one_output_a_sample_does_not_broadcast_against_targets():
    outputs, y = random(6, 1), random(6, seed=1)
    for measure in (squared_error, absolute_error):
        assert measure(outputs, y).shape == (6,)
        assert torch.equal(measure(outputs, y), measure(outputs[:, 0], y))
        assert torch.equal(measure(outputs, y), measure(outputs, y[:, None]))
    task = Task(nn.Linear(4, 1), "mse")
    x, theta = random(6, 4), torch.stack([task.theta0, task.theta0 + 1])
    single = task.evaluate(theta[1], a_batch(x, y))
    torch.testing.assert_close(single["loss"], (task.predict(theta[1], x)[:, 0] - y).square().sum())
    torch.testing.assert_close(single["abs_error"], (task.predict(theta[1], x)[:, 0] - y).abs().sum())
    both = task.evaluate_stacked(theta, Batch(x.expand(2, 6, 4), y.expand(2, 6), torch.ones(2, 6), keys(2)))
    torch.testing.assert_close(both["loss"][1], single["loss"])


def test_own_loss_and_metrics():
    def hinge(outputs: Tensor, y: Tensor) -> Tensor:
        right = outputs.gather(1, y[:, None])
        return (1 + outputs - right).clamp(min=0).sum(1) - 1

    def second(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.argsort(1)[:, -2] == y).float()

    task = Task(seeded(mlp), hinge, {"second": second})
    x, y = random(9, *BOXES), labels(9)
    outputs = task.predict(task.theta0, x)
    sums = task.evaluate(task.theta0, a_batch(x, y))
    assert set(sums) == {"loss", "second"}
    torch.testing.assert_close(sums["loss"], hinge(outputs, y).sum())
    assert sums["second"] == second(outputs, y).sum()
    assert set(Task(mlp(), hinge).evaluate(task.theta0, a_batch(x, y))) == {"loss"}
    both = task.evaluate_stacked(
        task.theta0.expand(2, -1), Batch(x.expand(2, 9, 3, 4), y.expand(2, 9), torch.ones(2, 9), keys(2))
    )
    assert both["second"].tolist() == [sums["second"]] * 2


def test_unknown_loss_is_named():
    with pytest.raises(ModelError, match=r"unknown loss 'hinge'.*cross_entropy, mse"):
        Task(nn.Linear(2, 2), "hinge")


# --- the vector -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, cnn, Partly, Autoencoder, Tokens, Scaled])
def test_vector_names_and_module_are_the_same_thing(make):
    module = seeded(make)
    task = Task(module)
    theta = random(task.size, seed=5)
    state = task.state_dict(theta)
    assert torch.equal(task.vector(state), theta)
    assert {n: v.shape for n, v in state.items()} == {
        n: p.shape for n, p in module.named_parameters() if p.requires_grad
    }
    net = task.module(theta)
    assert type(net) is type(module) and not net.training
    assert torch.equal(Task(net).theta0, theta)
    x = labels(5, 6, classes=11) if make is Tokens else random(5, *{mlp: BOXES, cnn: IMAGES}.get(make, (4,)))
    torch.testing.assert_close(net(x), task.predict(theta, x))


def test_the_vector_is_apart_from_the_users_module():
    module = nn.Linear(4, 3)
    task = Task(module)
    theta = task.theta0.clone()
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(task.theta0, theta)
    net = task.module(task.theta0)
    with torch.no_grad():
        net.weight.zero_()
    task.state_dict(task.theta0)["bias"].zero_()
    assert torch.equal(task.theta0, theta)


def test_state_dict_of_many_vectors():
    task = Task(Scaled())
    state = task.state_dict(random(3, task.size))
    assert state["temperature"].shape == (3,) and state["linear.weight"].shape == (3, CLASSES, 4)


def test_weights_of_another_model_are_refused():
    task = Task(nn.Linear(4, 3))
    with pytest.raises(ModelError, match="have no 'bias'"):
        task.vector(Task(nn.Linear(4, 3, bias=False)).state_dict(torch.zeros(12)))
    with pytest.raises(ModelError, match=r"'weight' have shape \(3, 5\), the model wants \(3, 4\)"):
        task.vector(nn.Linear(5, 3).state_dict())


def test_frozen_parameters_and_buffers_are_constants():
    module = seeded(Partly)
    task = Task(module)
    assert set(task.names) == {"linear.weight", "linear.bias", "unused"}
    assert task.size == 12 + 3 + 2
    x = random(5, 4)
    torch.testing.assert_close(task.predict(task.theta0, x), module(x))
    net = task.module(torch.zeros(task.size))
    assert torch.equal(net.frozen, module.frozen) and torch.equal(net.shift, module.shift)
    assert not net.frozen.requires_grad


def test_tied_weights_are_one_piece_of_the_vector():
    module = seeded(Autoencoder)
    task = Task(module, "mse")
    assert task.names == ["first.weight", "first.bias", "second.bias"]
    x = random(6, 4)
    theta = random(task.size, seed=2)
    net = task.module(theta)
    assert net.first.weight is net.second.weight
    torch.testing.assert_close(task.predict(theta, x), net(x))
    F.mse_loss(net(x), x).backward()
    torch.testing.assert_close(
        task.state_dict(task.gradient(theta, a_batch(x, x)))["first.weight"], net.first.weight.grad
    )
    stacked = task.gradient_stacked(
        theta.expand(2, -1), Batch(x.expand(2, 6, 4), x.expand(2, 6, 4), torch.ones(2, 6), keys(2))
    )
    torch.testing.assert_close(stacked[1], task.gradient(theta, a_batch(x, x)))


def test_a_layer_used_twice_in_a_sequence_is_not_stacked_natively():
    layer = nn.Linear(4, 4)
    assert not Task(nn.Sequential(layer, nn.ReLU(), layer)).stacks_natively


# --- padding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filling", [0.0, -3.0, 1e6])
@pytest.mark.parametrize("name", list(MODULES))
def test_padding_changes_nothing(name, filling):
    make, shape, _ = MODULES[name]
    task = Task(seeded(make))
    theta = task.theta0
    x, y = random(5, *shape), labels(5)
    padded_x, padded_y = torch.cat([x, torch.full((3, *shape), filling)]), torch.cat([y, torch.tensor([2, 0, 1])])
    weight = torch.tensor([1.0] * 5 + [0.0] * 3)
    whole, padded = a_batch(x, y), a_batch(padded_x, padded_y, weight)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(task.gradient(theta, padded), task.gradient(theta, whole), **close)
    torch.testing.assert_close(task.loss(theta, padded), task.loss(theta, whole), **close)
    for measure, value in task.evaluate(theta, whole).items():
        torch.testing.assert_close(task.evaluate(theta, padded)[measure], value, **close)
    stacked = Batch(padded_x[None], padded_y[None], weight[None], keys(1))
    torch.testing.assert_close(task.gradient_stacked(theta[None], stacked)[0], task.gradient(theta, whole), **close)
    for measure, value in task.evaluate(theta, whole).items():
        torch.testing.assert_close(task.evaluate_stacked(theta[None], stacked)[measure][0], value, **close)


# --- many clients at once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MODULES))
def test_many_clients_at_once_equal_one_by_one(name):
    make, shape, natively = MODULES[name]
    task = Task(seeded(make))
    assert task.stacks_natively == natively
    assert_stacked_equals_single(task, random(3, 6, *shape), labels(3, 6))


def test_many_clients_at_once_equal_one_by_one_on_tokens_and_scalars():
    tokens = Task(seeded(Tokens))
    assert not tokens.stacks_natively
    assert_stacked_equals_single(tokens, labels(3, 6, 8, classes=11), labels(3, 6))
    assert_stacked_equals_single(Task(seeded(Scaled)), random(3, 6, 4), labels(3, 6))


def test_many_clients_at_once_equal_one_by_one_in_regression_and_on_sequences():
    regression = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), "mse")
    assert_stacked_equals_single(regression, random(3, 6, 4), random(3, 6, 2, seed=1))
    scalar = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), "mse")
    assert_stacked_equals_single(scalar, random(3, 6, 4), random(3, 6, seed=1))
    places = Task(nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, CLASSES)))
    assert places.stacks_natively
    assert_stacked_equals_single(places, random(3, 6, 7, 4), labels(3, 6, 7))


def test_samples_are_coupled_by_batch_norm_only():
    assert Task(batch_norm_net()).couples_samples
    assert not Task(cnn()).couples_samples


def test_one_activation_used_twice():
    act = nn.ReLU()
    task = Task(nn.Sequential(nn.Linear(12, 5), act, nn.Linear(5, 5), act, nn.Linear(5, CLASSES)))
    assert_stacked_equals_single(task, random(3, 6, 12), labels(3, 6))


def test_forward_hooks_are_not_forgotten():
    module = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    module[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    assert_stacked_equals_single(Task(module), random(3, 6, 12), labels(3, 6))
