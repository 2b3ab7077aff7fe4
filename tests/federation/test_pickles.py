"""Facts about the reader of pickles: CIFAR's are read as pickle itself reads them, and no pickle can do anything."""

import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.errors import DataError
from personafl.federation.pickles import plain, read_pickle

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 300), np.uint8)
LABELS = [6, 9, 0, 255]


def python_2(entries, **of_the_array):
    """A dict in the protocol 2 of Python 2's cPickle, byte for byte: byte strings, memo numbers from 1."""
    return b"\x80\x02" + _Python2(of_the_array).value(entries) + b"."


class _Python2:
    def __init__(self, of_the_array):
        self.memos, self.of_the_array = 0, of_the_array

    def put(self):
        self.memos += 1
        return b"q" + bytes([self.memos]) if self.memos < 256 else b"r" + struct.pack("<I", self.memos)

    def value(self, value):
        if isinstance(value, str):
            return text(value) + self.put()
        if isinstance(value, np.ndarray):
            return self.array(value, **self.of_the_array)
        if not isinstance(value, list | dict):
            return number(value)
        parts = [(b"]" if isinstance(value, list) else b"}") + self.put()]
        items = [(item,) for item in value] if isinstance(value, list) else list(value.items())
        for start in range(0, len(items), 1000):
            parts += [b"(", *(self.value(part) for item in items[start : start + 1000] for part in item)]
            parts += [b"e" if isinstance(value, list) else b"u"]
        return b"".join(parts)

    def array(self, array, dtype="u1", content=None, shape=None):
        shape = b"".join(map(number, shape or array.shape)) + (b"\x86" if array.ndim == 2 else b"\x85")
        columns_first = array.ndim > 1 and array.flags.f_contiguous
        return b"".join(
            (
                b"cnumpy.core.multiarray\n_reconstruct\n" + self.put() + b"cnumpy\nndarray\n" + self.put(),
                b"K\x00\x85" + text("b") + b"\x87R" + self.put(),
                b"(K\x01" + shape,
                b"cnumpy\ndtype\n" + self.put() + text(dtype) + b"K\x00K\x01\x87R" + self.put(),
                b"(K\x03" + text("|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb",
                b"\x88" if columns_first else b"\x89",
                text(array.tobytes("A") if content is None else content) + b"tb",
            )
        )


def text(text):
    content = text.encode("latin-1") if isinstance(text, str) else text
    return (b"U" + bytes([len(content)]) if len(content) < 256 else b"T" + struct.pack("<i", len(content))) + content


def number(number):
    if 0 <= number < 1 << 8:
        return b"K" + bytes([number])
    return b"M" + struct.pack("<H", number) if 0 <= number < 1 << 16 else b"J" + struct.pack("<i", number)


def batch(images=IMAGES, labels=LABELS, **of_the_array):
    names = [f"camion_s_{number:06}.png" for number in range(len(labels))]
    entries = {"batch_label": "training batch 1 of 5", "labels": labels, "data": images, "filenames": names}
    return python_2(entries, **of_the_array)


def assert_read(content, images=IMAGES, labels=LABELS):
    read = read_pickle(content, "a batch", ["data", "labels"])
    assert read["labels"] == labels
    assert read["data"].dtype == np.uint8 and np.array_equal(read["data"], images)


@pytest.mark.parametrize("labels", [LABELS, list(range(2500)), [-1, 300, 70_000]], ids=["few", "many", "large"])
def test_pickles_of_python_2_are_read_as_pickle_reads_them(labels):
    content = batch(labels=labels)
    oracle = pickle.loads(content, encoding="latin1")
    assert oracle["labels"] == labels and np.array_equal(oracle["data"], IMAGES)
    assert_read(content, labels=labels)
    assert read_pickle(content, "a batch", list(oracle))["filenames"] == oracle["filenames"]


@pytest.mark.parametrize("protocol", [0, 1, 2])
@pytest.mark.parametrize("kind", [str, str.encode], ids=["str", "bytes"])
@pytest.mark.parametrize("order", "CF")
def test_pickles_of_python_3_are_read_too(protocol, kind, order):
    written = {
        kind("labels"): LABELS,
        kind("data"): np.asarray(IMAGES, order=order),
        kind("filenames"): [b"a", b"\xff"],
    }
    content = pickle.dumps(written, protocol)
    assert_read(content)
    assert read_pickle(content, "a batch", ["filenames"]) == {"filenames": ["a", "\xff"]}


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_numbers_are_read_as_pickle_reads_them(protocol):
    arrays = [
        np.arange(6).astype(dtype).reshape(shape, order=order)
        for dtype in ("<f8", ">f4", "<i8", ">i2", "f2", "u4", "?")
        for shape, order in (((2, 3), "C"), ((2, 1, 3), "F"))
    ]
    written = {"list": [{"array": array} for array in arrays], "scalar": np.float32(0.5), "number": 0.25}
    read = read_pickle(pickle.dumps(written, protocol), "a file", ["list", "scalar", "number"])
    for array, entry in zip(arrays, read["list"], strict=True):
        found = plain(entry["array"])
        assert found.dtype == array.dtype and np.array_equal(found, array)
    assert (read["scalar"], read["number"]) == (0.5, 0.25)


def test_an_array_with_its_columns_first_is_read_as_pickle_reads_it():
    content = batch(np.asfortranarray(IMAGES))
    assert np.array_equal(pickle.loads(content, encoding="latin1")["data"], IMAGES)
    assert_read(content)


def test_plain_python_2_text_protocol_with_numbers_and_memos():
    content = b"(dp1\nS'labels'\np2\n(lp3\nI6\naI9\nasS'again'\np4\ng3\nsS'data'\nN s.".replace(b" ", b"")
    oracle = pickle.loads(content)
    assert read_pickle(content, "a batch", ["labels", "again", "data"]) == oracle
    assert oracle == {"labels": [6, 9], "again": [6, 9], "data": None}


def test_an_entry_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(
        DataError, match="a batch has no 'fine_labels'; expected data, fine_labels, found batch_label, la"
    ):
        read_pickle(batch(), "a batch", ["data", "fine_labels"])


def attack(path):
    """Programs that would make a file here, or would do something that no array needs."""
    run = f"touch {path}".encode()
    text = b"U" + bytes([len(run)]) + run
    return {
        "os.system": b"cos\nsystem\n(" + text + b"tR.",
        "posix.system": b"\x80\x02cposix\nsystem\n" + text + b"\x85R.",
        "__builtin__.eval": b"\x80\x02}U\x06labelsc__builtin__\neval\n" + text + b"\x85Rs.",
        "subprocess.call": b"(" + text + b"isubprocess\ncall\n.",
        "os.popen": b"\x80\x02}U\x06labels](cos\npopen\n" + text + b"\x85Res.",
        "numpy.core.multiarray.fromfile": b"\x80\x02cnumpy.core.multiarray\nfromfile\n.",
        "nt.system": b"\x80\x04\x8c\x02nt\x8c\x06system\x93" + text + b"\x85R.",
        "numpy.f2py.diagnose.run": b"\x80\x02cnumpy.f2py.diagnose\nrun\n)R.",
        "numpy.ndarray.x": b"cnumpy.ndarray\nx\n.",
        r"os.\x1b[2J": b"cos\n\x1b[2J\n.",
    }


def test_a_pickle_with_code_is_refused_by_the_name_that_it_asks_for_and_executes_nothing(tmp_path):
    path = tmp_path / "made"
    for name, content in attack(path).items():
        with pytest.raises(DataError) as caught:
            read_pickle(content, "a batch", ["labels"])
        assert str(caught.value) == f"a batch asks for {name}, which no array needs; get the file again"
        assert not path.exists()
    # The programs are not harmless in themselves.
    pickle.loads(attack(path)["os.system"])
    assert path.exists()


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_refused_in_every_protocol(tmp_path, protocol):
    content = pickle.dumps({"labels": Touch(tmp_path / "made"), "data": IMAGES}, protocol)
    with pytest.raises(DataError, match=r"asks for (__builtin__|io|_io)\.open, which no array needs"):
        read_pickle(content, "a batch", ["labels"])
    assert not list(tmp_path.iterdir())


NAMES = {
    b"E": b"c_codecs\nencode\n",
    b"R": b"cnumpy.core.multiarray\n_reconstruct\n",
    b"A": b"cnumpy\nndarray\n",
    b"D": b"cnumpy\ndtype\n",
}


def program(text):
    """A program in which E, R, A and D stand for the four names that arrays need, each followed by a space."""
    for letter, name in NAMES.items():
        text = text.replace(letter + b" ", name)
    return b"\x80\x02" + text


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "exhausted before seeing STOP"),
        (b"\x1f\x8b\x08\x00", "opcode b'\\\\\\\\x1f' unknown"),
        (b"<html><body>", "opcode b'<' unknown"),
        (b"\x80\x02N.", "it holds no dict"),
        (b"\x80\x02.", "do not fit together"),
        (b"\x80\x02t.", "do not fit together"),
        (b"\x80\x02h\x07.", "do not fit together"),
        (b"\x80\x02q\x07.", "do not fit together"),
        (b"\x80\x02}K\x01K\x02s.", "keys that are not text"),
        (b"\x80\x02](U\x01aK\x02u.", "keys that are not text"),
        (b"\x80\x02}(U\x01au.", "keys that are not text"),
        (b"\x80\x02}K\x01a.", "appends to what is not a list"),
        (b"\x80\x06N.", "of protocol 6, newer than 5"),
        (b"\x80\x04)" + b"\x85" * 5000 + b"\x8c\x01a\x93.", "a name that is not text"),
        (b"\x80\x04\x8f.", "instruction EMPTY_SET"),
        (b"\x80\x05\x97.", "instruction NEXT_BUFFER"),
        (b"\x80\x02\x81.", "instruction NEWOBJ"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02P1\n.", "instruction PERSID"),
        (b"\x80\x022.", "instruction DUP"),
        (b"Sabc\n.", "no string quotes"),
        (b"I" + b"9" * 5000 + b"\n.", "4300"),
        (b"\x80\x02T\xff\xff\xff\x7fabc.", "expected 2147483647 bytes in a string4, but only 4 remain"),
        (b"\x80\x02T\xff\xff\xff\xffabc.", "byte count < 0"),
        (b"\x80\x02X\xff\xff\xff\xffabc.", "expected 4294967295 bytes in a unicodestring4"),
        (b"\x80\x02\x8e" + b"\xff" * 7 + b"\x7fabc.", "expected 9223372036854775807 bytes in a bytes8"),
        (b"\x80\x02\x8b\xff\xff\xff\x7fabc.", "long4|expected"),
        (program(b"E X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R."), "calls a function in a way"),
        (program(b"E K\x01U\x06latin1\x86R."), "calls a function in a way"),
        (program(b"A )R."), "calls a function in a way"),
        (program(b"R A K\x05\x85U\x01b\x87R."), "calls a function in a way"),
        (program(b"U\x05numpy)R."), "calls a function in a way"),
        (program(b"D U\x03c16K\x00K\x01\x87R."), "an array of c16 values, not of numbers"),
        (program(b"D U\x03M8sK\x00K\x01\x87R."), "an array of M8s values, not of numbers"),
        (program(b"R A K\x00\x85U\x01b\x87R}b."), "describes an array in a way"),
        (program(b"}}b."), "describes an array in a way"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_pickle_of_a_batch_is_refused_in_one_line(content, said):
    with pytest.raises(DataError, match=said) as caught:
        read_pickle(content, "a batch", [])
    line = str(caught.value)
    assert line.startswith("a batch is not a pickle") and line.endswith("; get the file again")
    assert len(line) < 200 and line.isprintable()


@pytest.mark.parametrize(
    "content, said",
    [
        (batch(content=IMAGES.tobytes()[:-1]), r"an array of shape \(4, 300\) has 1199 bytes"),
        (batch(content=IMAGES.tobytes() + b"\0"), r"an array of shape \(4, 300\) has 1201 bytes"),
        (batch(shape=(2**31 - 1, 3072)), r"an array of shape \(2147483647, 3072\) has 1200 bytes"),
        (batch(shape=(-4, -300)), "none that can be"),
        (batch(dtype="f4"), r"an array of shape \(4, 300\) has 1200 bytes"),
        (batch(dtype="O8"), "describes an array|of Python objects"),
        (pickle.dumps({"labels": LABELS, "data": IMAGES.reshape((1,) * 8 + (-1,))}, 2), "more than eight dimensions"),
        (pickle.dumps({"labels": LABELS, "data": IMAGES.astype(object)}, 2), "an array of Python objects"),
        (pickle.dumps({"labels": LABELS, "data": IMAGES.astype(np.complex64)}, 4), "an array of c8 values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_array_must_be_of_bytes_that_are_there(content, said):
    with pytest.raises(DataError, match=said):
        read_pickle(content, "a batch", ["data", "labels"])


def test_a_pickle_that_is_cut_anywhere_is_refused():
    content = batch(IMAGES[:1, :20], LABELS[:1])
    for length in range(len(content)):
        with pytest.raises(DataError, match="get the file again"):
            read_pickle(content[:length], "a batch", ["data", "labels"])


MEGABYTE = b"T\x00\x00\x10\x00" + bytes(1 << 20)


@pytest.mark.parametrize(
    "content, said",
    [
        (b"]" * 30_000, "more than 20000 instructions"),
        (b"(" * 30_000, "more than 20000 instructions"),
        # A million deep, Python's hash of such a tuple ends the process.
        (b"})" + b"\x85" * 19_000 + b"Ns.", "keys that are not text"),
        (b"}U\x01a)" + b"\x85" * 19_000 + b"s.", "has no 'data'"),
        (b"]q\x01" + b"(h\x01h\x01e" * 4_000 + b".", "holds no dict"),
        (program(MEGABYTE + b"q\x01(" + b"E h\x01U\x06latin1\x86R" * 3_000 + b"l."), "holds no dict"),
        (b"S" + b"\xff" * 500_000 + b"\n.", "no string quotes"),
    ],
    ids=["lists", "marks", "nested-key", "nested", "itself", "copies", "quoted"],
)
def test_small_files_take_little_memory(content, said, monkeypatch):
    monkeypatch.setattr("personafl.federation.pickles._MOST_INSTRUCTIONS", 20_000)
    tracemalloc.start()
    with pytest.raises(DataError, match=said) as caught:
        read_pickle(content, "a batch", ["data"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
    assert len(str(caught.value)) < 200


SMALL = batch(IMAGES[:1, :20], LABELS[:2])


@pytest.mark.filterwarnings("ignore:invalid .* sequence:DeprecationWarning")  # in a text that was damaged
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_give_a_value_or_a_data_error(changes):
    content = bytearray(SMALL)
    for position, value in changes:
        content[position] = value
    try:
        read = read_pickle(bytes(content), "a batch", ["data", "labels"])
    except DataError:
        return
    assert not isinstance(read["data"], np.ndarray) or read["data"].size <= len(SMALL)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [bytes([code]) for code in b"()]}.0NRabdelqhstu\x85\x86\x87\x88K"]
            + [b"h\x01", b"q\x01", b"U\x01a", b"E ", b"R ", b"A ", b"D ", b"U\x02u1", b"U\x06latin1"]
        ),
        max_size=30,
    )
)
def test_any_program_gives_a_value_or_a_data_error(parts):
    with pytest.raises(DataError):
        read_pickle(program(b"".join(parts)) + b".", "a batch", ["there is no such entry"])
