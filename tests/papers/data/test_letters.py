"""Facts about the original file of the letters: a line a letter is read, and nothing else is."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from personafl.errors import DataError
from personafl_papers.data.letters import Letters


def line(letter, picture, ending="\t\n"):
    """id, letter, next_id, word_id, position, fold, the pixels row by row, and a tab after the last one."""
    return "\t".join(["7", letter, "-1", "3", "1", "0", *map(str, picture.ravel())]) + ending


PICTURES = np.random.default_rng(0).integers(0, 2, (6, 16, 8), np.uint8)
WORD = "azbjkn"
TEXT = "".join(line(letter, picture) for letter, picture in zip(WORD, PICTURES, strict=True)).encode()


@pytest.mark.parametrize(
    "file, content",
    [
        ("letter.data", TEXT),
        ("letter.data.gz", gzip.compress(TEXT, mtime=0)),
        ("letter.data.gz", TEXT),  # unpacked by the browser on the way
        ("letter.data", TEXT.replace(b"\t\n", b"\n")),
        ("letter.data", TEXT.replace(b"\t\n", b"\r\n").rstrip()),
    ],
)
def test_the_original_is_read_as_published(folder, file, content):
    (folder / file).write_bytes(content)
    samples = Letters().load(0)
    assert samples.x.shape == (6, 1, 16, 8) and samples.x.dtype == np.float32
    assert np.array_equal(samples.x[:, 0], PICTURES)
    assert samples.y.dtype == np.int64 and samples.y.tolist() == [ord(letter) - ord("a") for letter in WORD]
    assert Letters(10).load(0).y.tolist() == [0, 1, 9]


GOOD = line("q", PICTURES[0])


@pytest.mark.parametrize(
    "wrong, said",
    [
        (GOOD[:-4], "has 133 fields, expected id, letter, next_id, word_id, position, fold and 128 pixels"),
        (GOOD.replace("\t\n", "\t1\n"), "has 135 fields"),
        ("\n", "has 1 fields"),
        (GOOD.replace("\tq\t", "\tQ\t"), "the letter must be one of a to z"),
        (GOOD.replace("\tq\t", "\tqq\t"), "the letter must be"),
        (GOOD.replace("\tq\t", "\t\t"), "the letter must be"),
        (GOOD[:-3] + "2\t\n", "each pixel must be 0 or 1"),
        (GOOD[:-5] + "01\t\t\n", "each pixel must be 0 or 1"),
        (GOOD[:-3] + "__import__('os')\t\n", "each pixel must be 0 or 1"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(folder, wrong, said):
    file = folder / "letter.data"
    file.write_bytes(TEXT + wrong.encode())
    with pytest.raises(DataError, match=said) as caught:
        Letters().load(0)
    assert str(caught.value).startswith(f"{file}, line 7: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (gzip.compress(TEXT, mtime=0)[:-3], "cannot read"),
        (gzip.compress(TEXT, mtime=0)[:40], "cannot read"),
        (gzip.compress(TEXT, mtime=0)[:-8] + bytes(8), "cannot read"),
        (b"PK\3\4" + bytes(100), "line 1: has 1 fields"),
    ],
)
def test_a_damaged_file_is_named(folder, content, said):
    (folder / "letter.data.gz").write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        Letters().load(0)
    assert str(folder / "letter.data.gz") in str(caught.value)


def test_a_gzip_bomb_is_not_unpacked(folder):
    (folder / "letter.data.gz").write_bytes(gzip.compress(bytes(10_000_000), mtime=0) * 30)
    tracemalloc.start()
    with pytest.raises(DataError, match="longer than the expected 32000000 bytes at most"):
        Letters().load(0)
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()


def test_the_original_and_the_packed_file_give_the_same(folder):
    """The first 300 real letters, written in the original format."""
    shared = Path(__file__).resolve().parents[4] / "shared" / "data"
    real = shared / "ocr_letters.npz"
    if not real.is_file():
        pytest.skip("ocr_letters.npz is not in ../shared/data")
    with np.load(real, allow_pickle=False) as arrays:
        x, y = arrays["x"][:300], arrays["y"][:300]
    np.savez(folder / "ocr_letters.npz", x=x, y=y)
    packed = Letters().load(0)
    (folder / "ocr_letters.npz").unlink()
    pictures = np.unpackbits(x, axis=1)
    (folder / "letter.data").write_text("".join(line(chr(97 + label), p) for label, p in zip(y, pictures, strict=True)))
    original = Letters().load(0)
    assert np.array_equal(original.x, packed.x) and np.array_equal(original.y, packed.y)
