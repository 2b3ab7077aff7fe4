"""Facts about texts: which words a tweet has, and that files are read whole or refused in one line."""

import gzip
import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from personafl.errors import DataError
from personafl_papers.data.text import LONGEST_LINE, Vocabulary, lines, opened, tokenize


@pytest.mark.parametrize(
    "text, words",
    [
        ("Need a hug ", "need a hug"),
        ("@user @Ann_1: hi", "hi"),
        ("see http://twitpic.com/2y1zl - Awww, HTTPS://a.b/c?d=e,f www.x.org!", "see awww ,"),
        ("I can't, won't, shan't and didn't", "i can not , will not , shall not and did not"),
        ("it's I'm you're we've they'll he'd rock'n'roll", "it 's i 'm you 're we 've they 'll he 'd rock n roll"),
        ("I don’t", "i do not"),
        ("I couldn&#39;t &lt;3 &quot;House&quot; &amp; tea", "i could not 3 house tea"),
        ("50% of 1,000 at 3.5 or 10:30, 2day mp3", "50 of 1,000 at 3.5 or 10:30 , 2day mp3"),
        ("ready... set!? go; no", "ready . . . set ! ? go ; no"),
        ("#followfriday well-known snake_case (:", "followfriday well known snake case"),
        ("Über ÉTÉ 東京", "über été 東京"),
        ("", ""),
        ("@user ", ""),
        ("can't've", "can not 've"),
        ("ain't n't", "ai not n t"),
    ],
)
def test_words_of_a_tweet(text, words):
    assert tokenize(text) == words.split()


@given(st.text())
def test_any_text_has_lower_case_words_without_spaces(text):
    for word in tokenize(text):
        assert word == word.lower() or word.lower().upper() != word.upper()  # some letters have no single lower case
        assert word and not any(letter.isspace() for letter in word)


def test_a_vocabulary_numbers_words_from_1_and_pads_at_the_end():
    vocabulary = Vocabulary(("good", "day", "!"))
    coded = vocabulary.encode(["Good day!", "a good, good day", "@ann"], tokens=4)
    assert coded.tolist() == [[1, 2, 3, 0], [0, 1, 0, 1], [0, 0, 0, 0]] and coded.dtype == np.int64
    assert vocabulary.encode([], tokens=4).shape == (0, 4)
    assert vocabulary.encode(["day " * 40]).tolist() == [[2] * 25]


def test_a_vocabulary_comes_back_from_its_array():
    vocabulary = Vocabulary(("'s", "été", "東京", "1,000"))
    stored = vocabulary.as_array()
    assert stored.dtype == np.uint8 and Vocabulary.from_array(torch.from_numpy(stored.copy())) == vocabulary
    with pytest.raises(DataError, match="a vocabulary must be words in UTF-8"):
        Vocabulary.from_array(np.array([255], np.uint8))


def test_the_same_bytes_are_read_plain_from_gzip_and_from_a_zip(tmp_path):
    content = b"one\ntwo\r\nthree"
    (tmp_path / "plain.txt").write_bytes(content)
    (tmp_path / "packed.txt").write_bytes(gzip.compress(content))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in/it.txt", content)
    for place in (("plain.txt",), ("packed.txt",), ("a.zip", "in/it.txt")):
        with opened(tmp_path / place[0], *place[1:]) as stream:
            assert list(lines(stream, "it")) == [b"one\n", b"two\r\n", b"three"]


def read(file, member=None):
    with opened(file, member) as stream:
        return list(lines(stream, str(file)))


def test_damaged_files_are_refused_in_one_line(tmp_path):
    packed = gzip.compress(bytes(range(256)) * 40)
    cut, flipped = tmp_path / "cut.gz", tmp_path / "flipped.gz"
    cut.write_bytes(packed[:-9])
    flipped.write_bytes(packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:])
    for file in (cut, flipped, tmp_path / "absent"):
        with pytest.raises(DataError, match=rf"cannot read .*{file.name}: .*; get the file again") as raised:
            read(file)
        assert "\n" not in str(raised.value)


def test_a_zip_gives_only_the_member_that_is_asked_for(tmp_path):
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../../it.txt", b"climbed")
        archive.writestr("bz.txt", b"x", zipfile.ZIP_BZIP2)
    with pytest.raises(DataError, match=r"a\.zip has no it\.txt; get the file again"):
        read(file, "it.txt")
    with pytest.raises(DataError, match=r"bz\.txt is compressed in an unusual way"):
        read(file, "bz.txt")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.zip"]


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_zip_with_a_wrong_byte_is_read_right_or_refused(place, value):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("it.txt", b"one\ntwo\n" * 20)
    damaged = bytearray(packed.getvalue())
    damaged[place % len(damaged)] = value
    try:
        assert read(io.BytesIO(bytes(damaged)), "it.txt") == [b"one\n", b"two\n"] * 20
    except DataError as error:
        assert "\n" not in str(error)


def test_an_endless_line_takes_no_memory():
    with pytest.raises(DataError, match=f"it: line 2 is longer than {LONGEST_LINE} bytes"):
        list(lines(io.BytesIO(b"short\n" + b"x" * (LONGEST_LINE + 1)), "it"))
    assert len(list(lines(io.BytesIO(b"x" * (LONGEST_LINE - 1) + b"\n"), "it"))) == 1
