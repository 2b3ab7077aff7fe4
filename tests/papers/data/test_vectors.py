"""Facts about word vectors: GloVe's formats, byte for byte, and that only whole files are believed."""

import gzip
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from personafl.errors import DataError
from personafl_papers.data.text import LONGEST_LINE
from personafl_papers.data.vectors import GLOVE, Vectors, find_vectors

TEXT = b"the 0.418 0.24968 -0.41242\n, 0.013441 0.23682 -0.16899\n\xc3\xa9t\xc3\xa9 1e-05 -3 4.5\n"
WORDS = ["\u00e9t\u00e9", "nobody", "the"]
TABLE = np.array([[1e-05, -3, 4.5], [0.418, 0.24968, -0.41242]], np.float32)


def npz(file, words=b"the\n,\n\xc3\xa9t\xc3\xa9", vec=((0.418, 0.24968, -0.41242), (0, 1, 2), (1e-05, -3, 4.5))):
    np.savez_compressed(file, words=np.array(words), vec=np.array(vec))
    return Vectors(file)


def zipped(file, member, content=TEXT):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return Vectors(file, member)


def plain(file, content=TEXT):
    file.write_bytes(content)
    return Vectors(file)


def test_every_format_gives_the_vectors_of_the_words_that_have_one(folder):
    for vectors in (
        plain(folder / "v.txt"),
        plain(folder / "v.txt.gz", gzip.compress(TEXT)),
        zipped(folder / "v.zip", "v.txt"),
        npz(folder / "v.npz"),
    ):
        positions, table = vectors.read(WORDS)
        assert positions == [0, 2] and table.dtype == np.float32
        assert np.array_equal(table, TABLE)


def test_half_precision_is_read_too(folder):
    vectors = npz(folder / "v.npz", vec=np.eye(3, dtype=np.float16))
    assert vectors.read(["the"])[1].tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    "content, said",
    [
        (b"the 1 2 3\nof 1 2\n", "line 2 has 2 values, expected 3"),
        (b"the 1 2 3\nof 1 2 3 4\n", "line 2 has 4 values, expected 3"),
        (b"the 1 2 3\nof 1 2 3", None),
        (b"the 1 2 3\n\nof 1 2 3\n", "line 2 has 0 values, expected 3"),
        (b"3 3\nthe 1 2 3\n", "line 2 has 3 values, expected 1"),
        (b"the\n", "line 1 has 0 values, expected a word and some"),
        (b"the 1 x 3\n", "line 1: could not convert string to float"),
        (b"the 1  3\n", "line 1: could not convert string to float"),
        (b"the 1 nan 3\n", "the vector of 'the' has values that are not finite"),
        (b"the 1 1e99 3\n", "the vector of 'the' has values that are not finite"),
        (b"of 1 2 3\n", "has no vector for any of the 1 words of the data"),
        (b"", "has no vector for any of the 1 words of the data"),
        (b"the " + b"1" * LONGEST_LINE, "line 1 is longer than"),
        (gzip.compress(TEXT)[:-9], "cannot read .*v.txt: .*; get the file again"),
    ],
)
def test_wrong_lines_are_named(folder, content, said):
    vectors = plain(folder / "v.txt", content)
    if said is None:
        assert vectors.read(["the"])[1].tolist() == [[1, 2, 3]]
        return
    with pytest.raises(DataError, match=said) as raised:
        vectors.read(["the"])
    assert "\n" not in str(raised.value)


def test_the_name_of_a_file_says_how_long_vectors_are(folder):
    with pytest.raises(DataError, match="line 1 has 3 values, expected 300"):
        plain(folder / "glove.6B.300d.txt").read(["the"])
    with pytest.raises(DataError, match=r"glove\.6B\.zip: glove\.6B\.50d\.txt: line 1 has 3 values, expected 50"):
        zipped(folder / "glove.6B.zip", "glove.6B.50d.txt").read(["the"])


@pytest.mark.parametrize(
    "arrays, said",
    [
        ({"words": b"the\nof"}, "has 2 words and 3 vectors; they must be as many"),
        ({"words": "the"}, "words holds .* values, expected bytes"),
        ({"words": np.array([b"the"])}, r"words has shape \(1,\), expected \(\)"),
        ({"vec": np.ones(3)}, r"vec has shape \(3,\), expected \(N, N\)"),
        ({"vec": np.ones((3, 2), int)}, "vec holds int64 values, expected floats"),
        ({"vec": np.full((3, 2), np.inf)}, "the vector of 'the' has values that are not finite"),
    ],
)
def test_wrong_npz_files_are_refused(folder, arrays, said):
    with pytest.raises(DataError, match=said):
        npz(folder / "v.npz", **arrays).read(["the"])


def test_objects_in_an_npz_are_not_unpickled(folder):
    np.savez(folder / "v.npz", words=np.array([{}], object), vec=np.ones((1, 2)))
    with pytest.raises(DataError, match="words holds object values, expected bytes"):
        Vectors(folder / "v.npz").read(["the"])


def test_auto_takes_the_longest_vectors_there_are(folder):
    held = []
    for file, size in (("glove.6B.50d.txt", 50), ("glove6B_100d.npz", 100), ("glove.6B.200d.txt.gz", 200)):
        (folder / file).touch()
        held.append(find_vectors("auto", "sent140"))
        assert held[-1] == Vectors(folder / file) and held == held[:size]
    archive = zipped(folder / "glove.6B.zip", "glove.6B.300d.txt")
    assert find_vectors("auto", "sent140") == archive
    assert find_vectors("glove.6B.100d.txt", "sent140") == Vectors(folder / "glove6B_100d.npz")
    assert find_vectors("glove.6B.50d.txt", "sent140") == Vectors(folder / "glove.6B.50d.txt")
    plain(folder / "mine.txt")
    assert find_vectors("mine.txt", "sent140") == Vectors(folder / "mine.txt")


def test_what_is_missing_is_said(folder):
    with pytest.raises(DataError) as raised:
        find_vectors("auto", "sent140")
    told = str(raised.value)
    assert "glove.6B.300d.txt" in told and str(folder) in told and GLOVE.url in told and "\n" not in told
    with pytest.raises(DataError, match=r"vectors = 'mine\.txt' is not in .*; put mine\.txt, or leave vectors out"):
        find_vectors("mine.txt", "sent140")
    (folder / "glove.6B.zip").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match=r"cannot read .*glove\.6B\.zip"):
        find_vectors("auto", "sent140")


def test_the_real_vectors_know_what_is_near():
    shared = Path(__file__).resolve().parents[4] / "shared" / "data"
    file = Path(os.environ.get("PERSONAFL_DATA") or shared) / "glove6B_100d.npz"
    if not file.is_file():
        pytest.skip(f"{file.name} is neither in the directory of PERSONAFL_DATA nor in ../shared/data")
    words = ["good", "great", "bad", "paris", "france", "berlin", "germany"]
    positions, table = Vectors(file).read(words)
    assert positions == list(range(7)) and table.shape == (7, 100)
    unit = dict(zip(words, table / np.linalg.norm(table, axis=1, keepdims=True), strict=True))
    assert unit["good"] @ unit["great"] > unit["good"] @ unit["berlin"] + 0.3
    capital = unit["france"] - unit["paris"] + unit["berlin"]
    assert max(set(words) - {"berlin", "france", "paris"}, key=lambda word: capital @ unit[word]) == "germany"
