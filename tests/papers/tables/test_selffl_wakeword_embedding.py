"""The wake-word study on a speech embedding, small ONNX files in its place: sound, windows, splits, a small run."""

import numpy as np
import pytest

from personafl.config import parse
from personafl.errors import ConfigError
from personafl.pretrained import load
from personafl.study.launch import in_process
from personafl_papers.data.audio import RATE, mulaw_encoded
from personafl_papers.data.speech_windows import STARTS, windows
from personafl_papers.data.wakeword import Wakeword
from personafl_papers.tables import selffl_wakeword, wakeword_study
from personafl_papers.tables.availability import EMBEDDING, available
from personafl_papers.tables.runs import run_stages
from personafl_papers.tables.selffl_wakeword_embedding import STUDY, TABLE
from personafl_papers.tables.table import Found

onnx = pytest.importorskip("onnx", reason="needs personafl[onnx]")
pytest.importorskip("onnxruntime", reason="needs personafl[onnx]")

WORDS = ("go", "up", "zero")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data directory with clips of 90 people, a filter bank and an embedding of random numbers."""
    data = tmp_path_factory.mktemp("data")
    draws = np.random.default_rng(0)
    labels = np.tile(np.arange(3), 90)
    pitch = np.array([300, 800, 2000])[labels] * draws.uniform(0.9, 1.1, 270)
    waves = 0.3 * np.sin(2 * np.pi * pitch[:, None] * np.arange(RATE) / RATE)
    np.savez(
        data / "speech_commands_8khz_mulaw.npz", audio_mulaw=mulaw_encoded(waves), label=labels,
        speaker=np.repeat(np.arange(90), 3), classes=np.array(WORDS),
    )  # fmt: skip
    (data / "speech-embedding").mkdir()
    front = draws.normal(size=(32, 1, 640)).astype(np.float32)
    save_onnx(
        data / EMBEDDING[1], ["n", 16_000], ["n", 1, 97, 32], {"W": front, "one": np.array([1])},
        ("Unsqueeze", ["x", "one"], "wave"), ("Conv", ["wave", "W"], "bands", {"strides": [160]}),
        ("Transpose", ["bands"], "frames", {"perm": [0, 2, 1]}), ("Unsqueeze", ["frames", "one"], "y"),
    )  # fmt: skip
    matrix = draws.normal(size=(76 * 32, 96)).astype(np.float32) / 50
    save_onnx(
        data / EMBEDDING[0], ["n", 76, 32, 1], ["n", 1, 1, 96], {"W": matrix, "shape": np.array([-1, 1, 1, 96])},
        ("Flatten", ["x"], "flat"), ("MatMul", ["flat", "W"], "made"), ("Reshape", ["made", "shape"], "y"),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_DATA", str(data))
        patch.setenv("PERSONAFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield data


def save_onnx(file, input_shape, output_shape, constants, *nodes):
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], **(more[0] if more else {})) for op, inputs, out, *more in nodes],
        "small",
        [helper.make_tensor_value_info("x", kind, input_shape)],
        [helper.make_tensor_value_info("y", kind, output_shape)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, file)


def test_windows_are_the_first_and_last_frames_of_the_sound_at_16_khz(folder):
    from scipy.signal import resample_poly

    waves = np.random.default_rng(1).normal(size=(3, RATE)).astype(np.float32)
    made = windows(waves, folder / EMBEDDING[1])
    assert made.shape == (3, 2, 76, 32, 1)
    kernel = onnx.numpy_helper.to_array(onnx.load(folder / EMBEDDING[1]).graph.initializer[0])[:, 0]
    fine = resample_poly(waves[1], 2, 1)
    frame = STARTS[1] + 75  # the last one of the last window
    expected = kernel @ fine[160 * frame : 160 * frame + 640] / 10 + 2
    assert made[1, 1, 75, :, 0] == pytest.approx(expected, abs=1e-3)
    assert np.array_equal(made[:, 0, STARTS[1] :], made[:, 1, : 76 - STARTS[1]])


def test_another_file_in_place_of_the_spectrograms_is_refused(folder):
    with pytest.raises(ConfigError, match="there is no such file"):
        Wakeword(melspectrogram="nowhere.onnx").load(0)
    wrong = folder / "wrong.onnx"
    save_onnx(wrong, ["n", 16_000], ["n", 8], {"W": np.zeros((16_000, 8), np.float32)}, ("MatMul", ["x", "W"], "y"))
    with pytest.raises(ConfigError, match=r"makes \(8,\) of a second of sound"):
        windows(np.zeros((1, RATE), np.float32), wrong)


def test_each_window_goes_through_the_embedding_alone(folder):
    backbone = load(folder / EMBEDDING[0], pooling="none")
    x = STUDY.federation(True, 1, 0).x[:5]
    features = backbone.features(x)
    assert features.shape == (5, 2, 96)
    assert np.allclose(features[:, 1], backbone.features(x[:, 1]).flatten(1), atol=1e-4)
    assert np.allclose(load(folder / EMBEDDING[0]).features(x), features.mean(1), atol=1e-5), "pooling is the mean"


def test_people_devices_and_splits_are_those_from_scratch(folder):
    ours, theirs = STUDY.federation(True, 4, 1), selffl_wakeword.STUDY.federation(True, 4, 1)
    assert ours.ids == theirs.ids and ours.groups == theirs.groups
    assert np.array_equal(ours.y, theirs.y) and np.array_equal(ours.bounds, theirs.bounds)
    assert np.array_equal(ours.truth["test_states"], theirs.truth["test_states"])


def test_a_small_run_has_every_part_and_searches_the_pooled_rate(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(wakeword_study, "METHODS", {"selffl": {}, "fedavg-w": wakeword_study.METHODS["fedavg-w"]})
    monkeypatch.setattr(wakeword_study, "VARIANTS", dict([*wakeword_study.VARIANTS.items()][:1]))
    found = Found(quick=True)
    run_stages(TABLE.stages, found, tmp_path / "runs", in_process)
    assert not found.failures and set(found.runs["pooled model"]["pooled"]) == {0, 1}
    assert len(found.searches["search pooled model"]["pooled"].trials) == 2
    config = parse({**STUDY.config(True, 1, 1), "seed": 0})
    assert config.federation().x.shape[1:] == (2, 96)
    numbers = TABLE.measure(found).numbers
    assert set(numbers) == set(TABLE.parts)
    assert set(numbers["global, normal"]) == {"Self-FL", "FedAvg-w", "warm start"}


def test_the_table_is_not_offered_without_the_files(folder, monkeypatch, tmp_path):
    assert available("speech-embedding")
    monkeypatch.setenv("PERSONAFL_DATA", str(tmp_path))
    assert not available("speech-embedding")
