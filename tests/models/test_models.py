"""The papers' models: their published sizes, what they can read, and that both engines train them alike."""

import numpy as np
import pytest
import torch
from torch import nn

from personafl.algorithms import Algorithm, FedAvg, PersFL
from personafl.config import parse
from personafl.data import SOURCES
from personafl.engines import ENGINES
from personafl.errors import ConfigError, ModelError
from personafl.federation import Federation
from personafl.kernels.task import Batch, Task
from personafl.models import (
    CNN,
    MCLR,
    MLP,
    MODELS,
    FemnistCNN,
    LinearModel,
    LSTMModel,
    Model,
    initialize,
)
from personafl.registry import checked
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.evaluation import measure, personal_models
from personafl.training.runner import Runner
from personafl_papers.models.wakeword import WakewordCNN


def size(model: Model, shape, outputs: int, constants=None) -> int:
    return Task(initialize(model, shape, outputs, seed=0, constants=constants or {})).size


def word_vectors(words: int, features: int) -> torch.Tensor:
    table = torch.from_numpy(np.random.default_rng(1).standard_normal((words, features)).astype(np.float32))
    table[0] = 0
    return table


# --- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape", "outputs", "parameters"),
    [
        (MCLR(), (1, 28, 28), 10, 7_850),
        (MLP(), (1, 28, 28), 10, 79_510),
        (CNN(), (3, 32, 32), 10, 62_006),
        (CNN(), (1, 28, 28), 10, 44_426),
        (FemnistCNN(), (1, 28, 28), 10, 1_663_370),
        (FemnistCNN(hidden=2048), (1, 28, 28), 62, 6_603_710),
        (LSTMModel(), (25, 300), 2, 1_098_242),
        (WakewordCNN(size="paper"), (1, 64, 100), 2, 3_025_794),
        (WakewordCNN(), (1, 64, 100), 2, 52_258),
        (LinearModel(), (1,), 1, 1),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "build") else str(value),
)
def test_published_numbers_of_parameters(model, shape, outputs, parameters):
    assert size(model, shape, outputs) == parameters


def test_word_vectors_are_no_parameters():
    constants = {"embedding": word_vectors(1000, 300)}
    assert size(LSTMModel(), (25,), 2, constants) == 1_098_242


def test_one_bias_vector_a_layer_would_not_be_the_published_number():
    """The figure tells which of the two forms of an LSTM it was."""
    two, features = 4 * 256, (300, 256)
    one_bias = sum(two * (f + 256 + 1) for f in features) + 257 * 2
    assert (one_bias, one_bias + 2 * two) == (1_096_194, 1_098_242)


def test_the_paper_size_of_the_wake_word_model_is_about_three_million_in_eleven_layers():
    net = WakewordCNN(size="paper").build((1, 64, 100), 2)
    assert 2.9e6 < sum(p.numel() for p in net.parameters()) < 3.1e6
    assert sum(isinstance(layer, nn.Conv2d | nn.MaxPool2d) for layer in net) == 11


# --- what they read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (CNN(), (3, 32, 32)),
        (CNN(), (1, 28, 28)),
        (CNN(), (28, 28)),
        (CNN(), (1, 16, 17)),
        (FemnistCNN(hidden=4), (1, 28, 28)),
        (FemnistCNN(hidden=4), (28, 28)),
        (FemnistCNN(hidden=4), (1, 16, 8)),
        (FemnistCNN(hidden=4), (2, 5, 7)),
        (WakewordCNN(), (1, 64, 100)),
        (WakewordCNN(), (1, 32, 50)),
        (WakewordCNN(), (40, 98)),
        (WakewordCNN(), (1, 16, 16)),
        (LSTMModel(hidden=3), (7, 5)),
        (LSTMModel(hidden=3, layers=1), (1, 1)),
        (LSTMModel(hidden=3, layers=3), (7, 5)),
        (MLP(hidden=()), (2, 3, 4)),
    ],
)
def test_shapes_that_fit(model, shape):
    net = initialize(model, shape, 4, seed=0)
    assert net(torch.randn(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (CNN(), (1, 16, 8), "images (channels, height, width) or (height, width) of at least 16 by 16"),
        (CNN(), (32, 32, 3), "images (channels, height, width) or (height, width) of at least 16 by 16"),
        (CNN(), (64,), "images (channels, height, width) or (height, width) of at least 16 by 16"),
        (FemnistCNN(), (1, 28, 3), "images (channels, height, width) or (height, width) of at least 4 by 4"),
        (FemnistCNN(), (1, 1, 28, 28), "images (channels, height, width) or (height, width) of at least 4 by 4"),
        (WakewordCNN(), (1, 64, 15), "images (channels, height, width) or (height, width) of at least 16 by 16"),
        (LSTMModel(), (1, 28, 28), "token ids (steps,) or vectors (steps, features)"),
        (LSTMModel(), (0, 5), "token ids (steps,) or vectors (steps, features)"),
    ],
)
def test_samples_that_a_model_cannot_read(model, shape, expected):
    with pytest.raises(ModelError) as error:
        initialize(model, shape, 4, seed=0)
    assert str(error.value) == f"model {model.name} takes {expected}; this data has samples of shape {shape}"


def test_the_smallest_images_leave_one_place_for_the_linear_layers():
    assert CNN().build((1, 16, 16), 2)[7].in_features == 16
    assert FemnistCNN().build((1, 4, 4), 2)[7].in_features == 64


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({}, "model lstm needs word vectors; data sent140 brings them"),
        ({"embedding": torch.zeros(5)}, "model lstm takes word vectors (words, features); these have shape (5,)"),
        ({"embedding": torch.zeros(0, 5)}, "model lstm takes word vectors (words, features); these have shape (0, 5)"),
        (
            {"embedding": torch.ones(3, 5)},
            "model lstm takes token 0 for padding and unknown words: the first word vector must be 0",
        ),
    ],
    ids=["none", "flat", "empty", "token 0"],
)
def test_word_vectors_that_the_lstm_cannot_use(constants, message):
    with pytest.raises(ModelError) as error:
        initialize(LSTMModel(), (25,), 2, seed=0, constants=constants)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("femnist-cnn", {"hidden": 0}, "model.hidden = 0: must be at least 1"),
        ("lstm", {"hidden": 0}, "model.hidden = 0: must be at least 1"),
        ("lstm", {"layers": 0}, "model.layers = 0: must be at least 1"),
        ("wakeword-cnn", {"size": "large"}, "model.size = 'large': input should be 'paper' or 'small'"),
    ],
)
def test_settings_out_of_range(model, settings, message):
    with pytest.raises(ConfigError) as error:
        checked(MODELS[model], "model", settings)
    assert str(error.value) == message


def test_every_data_set_has_the_model_of_its_papers():
    assert parse({"data": "digits"}).model == MLP()
    of_papers = {
        "mnist": "mclr", "fmnist": "mlp", "emnist": "mclr", "letters": "mclr", "cifar10": "cnn", "cifar100": "cnn",
        "sent140": "lstm", "wakeword": "wakeword-cnn",
    }  # fmt: skip
    assert {name: SOURCES[name].default_model for name in of_papers} == of_papers
    assert {kind.default_model for kind in SOURCES.values() if hasattr(kind, "default_model")} <= set(MODELS)


# --- weights -------------------------------------------------------------------------------------------------------


def test_initial_weights_depend_on_the_seed_alone():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(np.random.default_rng().integers(1000))
        return Task(initialize(LSTMModel(hidden=4), (5,), 2, seed, {"embedding": word_vectors(9, 3)})).theta0

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("chosen", ["paper", "small"])
def test_the_wake_word_model_starts_with_a_signal_at_its_output(chosen):
    """Seven layers of torch's usual start would leave hardly any: the outputs of two samples would be alike."""
    net = initialize(WakewordCNN(size=chosen), (1, 32, 50), 2, seed=0)
    with torch.no_grad():
        features = net[:-1](torch.randn(8, 1, 32, 50))
    assert 0.1 < features.square().mean().sqrt() < 10


def test_every_layer_of_the_large_models_gets_a_gradient():
    for model, shape, outputs in (
        (WakewordCNN(size="paper"), (1, 32, 50), 2), (FemnistCNN(), (1, 28, 28), 10), (LSTMModel(), (25, 300), 2),
    ):  # fmt: skip
        task = Task(initialize(model, shape, outputs, seed=0))
        batch = Batch(torch.randn(2, *shape), torch.tensor([0, 1]), torch.ones(2), torch.tensor(0))
        for name, gradient in task.split(task.gradient(task.theta0, batch)).items():
            assert gradient.abs().max() > 0, f"{model.name}: {name}"


# --- both engines --------------------------------------------------------------------------------------------------

SMALL: dict[str, tuple[Model, tuple[int, ...]]] = {
    "mclr": (MCLR(), (6,)),
    "mlp": (MLP(hidden=(5,)), (6,)),
    "cnn": (CNN(), (1, 16, 16)),
    "femnist-cnn": (FemnistCNN(hidden=4), (1, 4, 5)),
    "lstm": (LSTMModel(hidden=8), (6,)),
    "lstm on vectors": (LSTMModel(hidden=5, layers=1), (6, 3)),
    "wakeword-cnn": (WakewordCNN(), (1, 16, 17)),
    "linear": (LinearModel(), (6,)),
}


def tiny_federation(shape: tuple[int, ...], ids: bool) -> Federation:
    """Three clients with 3, 8 and 5 training samples: some batches are short."""
    draw = np.random.default_rng(2)
    data = {}
    for m, n in enumerate((5, 10, 7)):
        x = draw.integers(0, 11, (n, *shape)) if ids else draw.standard_normal((n, *shape)).astype(np.float32)
        y = draw.integers(0, 3, n)
        data[f"c{m}"] = {"train": (x[2:], y[2:]), "val": (x[1:2], y[1:2]), "test": (x[:1], y[:1])}
    return Federation.from_clients(data, classes=3)


def trained(engine: str, algorithm: Algorithm, model: Model, shape: tuple[int, ...], folder) -> dict[str, np.ndarray]:
    """The server's model, the clients' models and what is measured of them after two rounds."""
    ids = model.name == "lstm" and len(shape) == 1
    federation = tiny_federation(shape, ids)
    task = Task(initialize(model, shape, 3, 0, {"embedding": word_vectors(11, 4)}))
    made = ENGINES[engine](task, federation, Local(lr=0.05, batch_size=4, epochs=2), seed=5, threads=1)
    schedule = Schedule(rounds=9, eval_every=0, checkpoint_every=0)
    runner = Runner(algorithm, LocalClients(made), schedule, RunFolder(folder), {})
    for _ in range(2):
        runner.step()
    now = (runner.algorithm, made, runner.clients.store, runner.snapshot(True))
    personal = torch.cat([part.theta for part in personal_models(*now)])
    return {**measure(*now), "personal": personal.numpy(), "global": runner.server["theta"].numpy()}


def assert_close(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        scale = max(np.abs(np.nan_to_num(value)).max(initial=0), 1e-3)
        np.testing.assert_allclose(value, two[name], rtol=1e-5, atol=1e-5 * scale, err_msg=name)


def test_every_model_is_tried_on_both_engines():
    elsewhere = {"lora"}  # tests/pretrained/test_lora.py
    assert {model.name for model, _ in SMALL.values()} | elsewhere == set(MODELS)


@pytest.mark.parametrize("model", SMALL)
def test_loop_and_stacked_train_alike(tmp_path, model):
    one, two = (trained(engine, FedAvg(), *SMALL[model], tmp_path) for engine in ("loop", "stacked"))
    assert_close(one, two)


def test_a_program_that_measures_validation_data_inside_vmap_can_use_the_lstm(tmp_path):
    algorithm = PersFL(temperatures=(1.0,), imitations=(0.5,), distill_epochs=1)
    one, two = (trained(engine, algorithm, *SMALL["lstm"], tmp_path) for engine in ("loop", "stacked"))
    assert_close(one, two)
