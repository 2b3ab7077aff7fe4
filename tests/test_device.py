"""Nothing assumes the processor: everything follows the device that the parameters are on.

The device is `meta`, which has shapes and no values. An operation that mixes it with a tensor elsewhere raises an
error, as it would on a GPU.
"""

import pytest
import torch
from torch import nn

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.base import Context, Uploads
from personafl.algorithms.extras import trained_task
from personafl.kernels.task import Batch, Task
from personafl.models import CNN, MCLR, MLP, FemnistCNN, LSTMModel, initialize
from personafl.settings import Local
from personafl.training.job_info import job_info
from tests.archetypes import FOR_TWO_LAYERS

CLIENTS, SAMPLES, WIDTH = 3, 4, 5
BY_VALUE = {"fedamp", "heurfedamp", "selffl", "selffl-aug", "cfl", "mocha", "fedpac"}
"""Their servers choose rows by what is in them, which `meta` cannot."""
DRAWN = {"ifca", "fedem", "fedfomo", "pfedhn", "fedbe"}
"""Their servers draw by what the initial weights are, which on `meta` are nothing."""
MODELS = {
    "linear layers": (MLP((12,)), (20,)),
    "logistic regression": (MCLR(), (20,)),
    "narrow convolutions": (CNN(), (3, 32, 32)),
    "wide convolutions": (FemnistCNN(), (28, 28)),
    "narrow LSTM": (LSTMModel(hidden=8, layers=2), (5, 6)),
    "wide LSTM": (LSTMModel(hidden=256, layers=1), (5, 6)),
}


def batch(*shape):
    x = torch.empty(CLIENTS, SAMPLES, *shape, device="meta")
    y, weight, keys = torch.zeros(CLIENTS, SAMPLES), torch.ones(CLIENTS, SAMPLES), torch.zeros(CLIENTS)
    return Batch(x, y.long().to("meta"), weight.to("meta"), keys.long().to("meta"))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_sums_of_all_clients_are_where_their_parameters_are(name):
    model, shape = MODELS[name]
    task = Task(initialize(model, shape, 4, 0))
    theta = torch.empty(CLIENTS, task.size, device="meta")
    assert task.gradient_stacked(theta, batch(*shape)).device.type == "meta"
    task.descend_stacked(theta, batch(*shape), 0.1, (0.5, torch.empty_like(theta)))
    assert {value.device.type for value in task.evaluate_stacked(theta, batch(*shape)).values()} == {"meta"}


class Patches(nn.Module):
    """Parameters outside of layers, a buffer, a frozen layer, attention, statistics."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv1d(3, 8, 4, 4), nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.token, self.scale = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.ones(8))
        self.encoder, self.gru = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.frozen(self.norm(self.patch(x)).transpose(1, 2)) + self.shift
        x = torch.cat([self.token.expand(len(x), -1, -1), x * self.scale], 1)
        return self.head(self.gru(self.encoder(x))[0][:, -1])


def test_constants_and_raw_parameters_follow():
    task = Task(Patches())
    theta = torch.empty(CLIENTS, task.size, device="meta")
    assert task.gradient_stacked(theta, batch(3, 16)).device.type == "meta"
    full = torch.empty(CLIENTS, task.full_size, device="meta")
    assert {value.device.type for value in task.evaluate_stacked(full, batch(3, 16)).values()} == {"meta"}
    assert task.template.shift.device.type == "cpu"


def test_mixing_devices_is_noticed():
    task = Task(nn.Linear(20, 4))
    with pytest.raises(RuntimeError):
        task.gradient_stacked(torch.empty(CLIENTS, task.size), batch(20))


class Measured:
    """`Samples` that are where the parameters are."""

    def __call__(self, theta):
        return {"loss": theta.sum(), "correct": theta.mean()}

    def mean(self, function, theta, **extra):
        outputs, y = torch.empty(SAMPLES, 4, device=theta.device), torch.zeros(SAMPLES, device=theta.device)
        if getattr(function, "uses_features", False):
            extra["features"] = torch.empty(SAMPLES, WIDTH, device=theta.device)
        if getattr(function, "couples_samples", False):
            return function(outputs, y.long(), weight=torch.ones_like(y), **extra)
        return function(outputs, y.long(), **extra).mean(0)


@pytest.mark.parametrize("name", [name for name in FOR_TWO_LAYERS if name not in BY_VALUE | DRAWN])
def test_an_algorithm_stays_where_its_parameters_are(name):
    task = trained_task(ALGORITHMS[name](), Task(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))))
    algorithm = ALGORITHMS[name]().prepare(job_info(task, CLIENTS, Local(), None))
    theta0 = task.theta0.to("meta")
    server = algorithm.new_server(theta0, CLIENTS)
    mine = algorithm.send(server, torch.arange(CLIENTS)).one(0)
    own = algorithm.new_client(theta0, mine)
    number = torch.tensor(3, device="meta")
    ctx = Context(1, 0.1, Local(), number, number, number, number, Measured(), Measured())
    carry, steps = algorithm.begin(own, mine, ctx)
    carry = {key: value.clone() for key, value in carry.items()}

    def gradient(theta, batch=0, objective=None, **extra):
        return theta * 2

    gradient.predict = lambda theta, batch=0: theta[None, :4]
    gradient.descend = lambda theta, lr, proximal: theta.sub_(theta * lr)
    gradient.features = lambda theta, batch=0: theta[None]
    carry = algorithm.step(carry, mine, gradient, ctx)
    kept, up = algorithm.finish(own, carry, mine, ctx)
    made = [*kept.values(), *up.values(), steps]
    if algorithm.evaluation_program(False) is None:  # else the personalized model is made by that
        made.append(algorithm.personal(kept, mine))
    assert {value.device.type for value in made} == {"meta"}
    values = {key: torch.stack([value] * CLIENTS) for key, value in up.items()}
    uploads = Uploads(torch.arange(CLIENTS), torch.full((CLIENTS,), 5, device="meta"), values, algorithm.uplink)
    new = algorithm.aggregate(server, uploads)
    assert {value.device.type for key, value in new.items() if value.is_floating_point()} <= {"meta"}
