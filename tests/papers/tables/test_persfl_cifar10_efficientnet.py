"""CIFAR-10 on EfficientNet-lite0: the network against its state dict's names, and a small run of the table."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from personafl.config import parse
from personafl.study.launch import in_process
from personafl_papers.models import efficientnet_lite0
from personafl_papers.models.efficientnet_lite0 import EfficientNetLite0, SameConv
from personafl_papers.tables import persfl_cifar10_efficientnet as table
from personafl_papers.tables import persfl_tables
from personafl_papers.tables.availability import EFFICIENTNET, available, weights
from personafl_papers.tables.runs import run_stages
from personafl_papers.tables.table import Found
from tests.papers.tables.cells import use_real_data

IMAGES = 240


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data directory with noise in ten colours for CIFAR-10, and a network that was trained on nothing."""
    data = tmp_path / "data"
    (data / EFFICIENTNET).parent.mkdir(parents=True)
    draws = np.random.default_rng(0)
    y = np.arange(IMAGES, dtype=np.uint8) % 10
    x = (draws.integers(0, 120, (IMAGES, 32, 32, 3)) + 13 * y[:, None, None, None] * [1, 0, 1]).astype(np.uint8)
    np.savez(data / "cifar10.npz", x_train=x[:-40], y_train=y[:-40], x_test=x[-40:], y_test=y[-40:])
    torch.manual_seed(0)
    torch.save(EfficientNetLite0().state_dict(), data / EFFICIENTNET)
    monkeypatch.setenv("PERSONAFL_DATA", str(data))
    monkeypatch.setenv("PERSONAFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(efficientnet_lite0.EfficientNetLite0.__init__, "__defaults__", (32,))  # nine times as fast
    return data


def test_parts_have_the_names_and_sizes_of_the_state_dict():
    state = EfficientNetLite0().state_dict()
    assert len(state) == 296
    assert sum(p.numel() for p in EfficientNetLite0().parameters()) == 4_652_008
    shapes = {"_conv_stem.weight": (32, 3, 3, 3), "_blocks.3._depthwise_conv.weight": (144, 1, 5, 5),
              "_blocks.15._project_conv.weight": (320, 1152, 1, 1), "_fc.weight": (1000, 1280)}  # fmt: skip
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    assert "_blocks.0._expand_conv.weight" not in state and "_blocks.1._expand_conv.weight" in state


@pytest.mark.parametrize(("size", "kernel", "stride"), [(8, 3, 2), (7, 3, 2), (8, 5, 1), (6, 5, 2)])
def test_padding_is_tensorflows(size, kernel, stride):
    """By hand: the k-th place reads from k·stride on, of an image with the smaller half of the zeros before it."""
    conv, image = SameConv(1, 1, kernel, stride), torch.randn(1, 1, size, size)
    out = conv(image)[0, 0]
    places = -(-size // stride)
    zeros = max(0, (places - 1) * stride + kernel - size)
    whole = F.pad(image, (zeros // 2, kernel) * 2)[0, 0]
    assert out.shape == (places, places)
    for i, j in ((0, 0), (places - 1, 0), (places - 1, places - 1)):
        seen = whole[i * stride :, j * stride :][:kernel, :kernel]
        assert out[i, j].item() == pytest.approx((seen * conv.weight[0, 0]).sum().item(), abs=1e-5)


def test_users_and_splits_are_those_from_scratch(folder):
    tables = {key: value for key, value in table.config("ds2", True).items() if key != "backbone"}
    ours, theirs = (
        parse({**t, "seed": 1}).federation() for t in (tables, persfl_tables.config("cifar10", "ds2", True))
    )
    assert torch.equal(ours.y, theirs.y) and np.array_equal(ours.bounds, theirs.bounds)


def test_a_small_run_has_a_row_for_each_method(folder, tmp_path, monkeypatch):
    few = ("fedavg-global", "persfl")
    monkeypatch.setattr(table, "METHODS", {name: table.METHODS[name] for name in few})
    monkeypatch.setattr(table, "SEEDS", 1)
    found = Found(quick=True)
    run_stages(table.TABLE.stages, found, tmp_path / "runs", in_process)
    assert not found.failures
    assert set(found.searches["search cifar10, EfficientNet"]) == {few[0]}
    run = next(iter(found.runs["cifar10 ds1"][few[0]].values()))
    assert run.manifest["backbone"]["sha256"] and run.manifest["model"]["name"] == "mclr"
    numbers = table.measure(found).numbers["cifar10 ds1"]
    assert set(numbers) == {table.ROWS[name] for name in few}
    assert set(numbers["PersFL"]) == {"accuracy", "SD", "T", "λ"}


def test_the_table_is_not_offered_without_the_weights(folder):
    assert available("efficientnet-lite0")
    (folder / EFFICIENTNET).unlink()
    assert not available("efficientnet-lite0")


@pytest.mark.slow
def test_imagenets_classes_know_cifars_kinds(monkeypatch):
    """With the real weights and images, where they are: frogs, cats and ships by ImageNet's own classes."""
    use_real_data(monkeypatch, "persfl-cifar10-efficientnet")
    net = EfficientNetLite0().eval()
    net.load_state_dict(torch.load(weights(EFFICIENTNET)[0], weights_only=True))
    x, y = (array[:300] for array in persfl_images())
    kinds = {3: range(281, 286), 6: range(30, 33), 8: (403, 472, 484, 510, 554, 628, 724, 780, 814, 871, 914)}
    rows = np.isin(y, [*kinds])
    with torch.inference_mode():
        shares = net._fc(net(torch.tensor(x[rows]))).softmax(1)
    said = torch.stack([shares[:, list(own)].sum(1) for own in kinds.values()], 1).argmax(1)
    assert float((np.array([*kinds])[said] == y[rows]).mean()) > 0.6, "a third by chance"


def persfl_images():
    from personafl_papers.data.cifar import CIFAR10_FILES

    return CIFAR10_FILES.load("half")
