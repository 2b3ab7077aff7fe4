"""What travels comes out as it went in, and nothing else is taken."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.backends.flower.job import layout_of
from personafl.backends.flower.messages import pack, unpack, values
from personafl.errors import DataError
from tests.backends.flower.grid import MemoryGrid, travelled

KINDS = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_tensors_come_out_as_they_went_in(kind, shape):
    MemoryGrid({})
    state = {"a": torch.arange(int(np.prod(shape))).reshape(shape).to(kind), "b": torch.tensor([float("nan"), -0.0])}
    content = travelled(Message(RecordDict({"up": pack(state)}), 1, "train"))[0].content
    for found in (unpack(content, "up"), unpack(content, "up", layout_of(state))):
        assert found.keys() == state.keys()
        for name, value in state.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert found[name].numpy().tobytes() == value.numpy().tobytes()
            found[name].zero_()  # what comes out may be written to


def record(data: bytes, stype: str = "numpy.ndarray") -> RecordDict:
    return RecordDict({"up": ArrayRecord({"a": Array("float32", (3,), stype, data)})})


GOOD = Array(np.arange(3, dtype=np.float32)).data


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_arrays_are_refused_or_read_as_what_they_say(data):
    damaged = bytearray(GOOD)
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for content in (record(bytes(damaged)), record(GOOD[:cut])):
        try:
            found = unpack(content, "up", {"a": ("float32", (3,))})
        except DataError as error:
            assert "\n" not in str(error)
        else:
            assert found["a"].shape == (3,) and found["a"].dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "no tensors 'up'"),
        (RecordDict({"up": MetricRecord({"a": 1.0})}), "no tensors 'up'"),
        (record(GOOD, "pickle"), "not a numpy array"),
        (record(GOOD.replace(b"(3,)", b"(9,)")), "says float32 (9,) and has 12 bytes"),
        (record(GOOD.replace(b"(3,), ", b"(-3,),")), "up.a"),
        (record(GOOD.replace(b"<f4", b">f4")), "has the type >f4"),
        (record(GOOD.replace(b"False", b"True ")), "row after row"),
        (record(b""), "cannot be read"),
        (record(GOOD + b"more"), "has 16 bytes"),
    ],
)
def test_what_is_wrong_is_said(content, reason):
    with pytest.raises(DataError, match=r".") as caught:
        unpack(content, "up", {"a": ("float32", (3,))})
    assert reason in str(caught.value)


def test_pickled_objects_are_never_loaded(tmp_path):
    file = tmp_path / "a.npy"
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="has the type object"):
        unpack(record(file.read_bytes()), "up")


def test_values_have_their_types():
    content = RecordDict({"answer": ConfigRecord({"steps": 3, "failed": True})})
    assert values(content, "answer", {"steps": int, "failed": bool}) == {"steps": 3, "failed": True}
    with pytest.raises(DataError, match=r"answer.failed is 'True', expected int"):
        values(content, "answer", {"failed": int})  # a bool is not a number here
    with pytest.raises(DataError, match=r"answer.round is 'None', expected int"):
        values(content, "answer", {"round": int})
