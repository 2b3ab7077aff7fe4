"""Short texts as token ids: the rules by which a tweet becomes words, and the words that have a number."""

import gzip
import html
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import DataError

LONGEST_LINE = 1 << 16  # bytes; a line of 300 values has about 3,000

_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile)
_LEFT_OUT = re.compile(r"(?:https?://|www\.)\S*|@\w+")
_NEGATION = re.compile(r"\b(ca|wo|sha|[^\W\d_]+)n't\b")
_SHORTENED = {"ca": "can", "wo": "will", "sha": "shall"}
_TOKEN = re.compile(
    r"""\d+(?:[.,:]\d+)*(?![^\W_])   # a number with what is inside it: 50, 1,000, 3.5, 10:30
      | '(?:s|m|d|re|ve|ll)\b        # the second half of it's, i'm, we'd, you're, i've, we'll
      | [^\W_]+                      # letters and digits of any script
      | [.,!?;]""",
    re.VERBOSE,
)


def tokenize(text: str) -> list[str]:
    """The words of a tweet, as GloVe spells them.

    HTML entities are decoded and letters made lower case. Links and @names are left out. A shortened "not" is the word
    "not"; the shortened words 's, 'm, 'd, 're, 've and 'll are tokens of their own. So are numbers, together with the
    points, commas and colons inside them, and each of . , ! ? ; (as in LEAF). What is left, such as # and emoticons,
    only separates words.

    >>> tokenize("@ann It&#39;s 10:30 &amp; I CAN'T sleep!! #tired www.example.org")
    ['it', "'s", '10:30', 'i', 'can', 'not', 'sleep', '!', '!', 'tired']
    """
    plain = _LEFT_OUT.sub(" ", html.unescape(text).lower().replace("’", "'"))
    return _TOKEN.findall(_NEGATION.sub(lambda found: f"{_SHORTENED.get(found[1], found[1])} not", plain))


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number: the first has 1, the second 2, …; 0 is padding and every other word.

    >>> Vocabulary(("good", "morning")).encode(["Good morning, Ann", ""], tokens=4).tolist()
    [[1, 2, 0, 0], [0, 0, 0, 0]]
    """

    words: tuple[str, ...]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    def encode(self, texts: Iterable[str], tokens: int = 25) -> NDArray[np.int64]:
        """The numbers of each text's first so many tokens, padded at the end: (N, tokens)."""
        known = [[self._numbers.get(word, 0) for word in tokenize(text)[:tokens]] for text in texts]
        return np.array([ids + [0] * (tokens - len(ids)) for ids in known], np.int64).reshape(-1, tokens)

    def as_array(self) -> NDArray[np.uint8]:
        """The words as bytes, one a line, the form in which a federation's constants keep them."""
        return np.frombuffer("\n".join(self.words).encode(), np.uint8)

    @classmethod
    def from_array(cls, array: Any) -> "Vocabulary":
        """Read what `as_array` gave, such as `run.constants["vocabulary"]`.

        >>> Vocabulary.from_array(Vocabulary(("good", "day")).as_array()).words
        ('good', 'day')
        """
        values = array.numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
        try:
            return cls(tuple(values.astype(np.uint8).tobytes().decode().split("\n")))
        except UnicodeDecodeError as error:
            raise DataError(f"a vocabulary must be words in UTF-8, one a line: {error}") from error


@contextmanager
def opened(file: Path, member: str | None = None) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked on the way if it is gzip, or of a member of a zip; nothing goes to the disk.

    What goes wrong while reading is a DataError.
    """
    try:
        with ExitStack() as stack:
            if member is not None:
                archive = stack.enter_context(zipfile.ZipFile(file))
                if member not in archive.namelist():
                    raise DataError(f"{file} has no {member}; get the file again")
                info = archive.getinfo(member)
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DataError(f"{file}: {member} is compressed in an unusual way; get the file again")
                yield stack.enter_context(archive.open(info))
            else:
                raw = stack.enter_context(open(file, "rb"))
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                yield stack.enter_context(gzip.open(raw)) if packed else raw  # type: ignore[arg-type]
    except _UNREADABLE as error:
        raise DataError(f"cannot read {file}: {error or type(error).__name__}; get the file again") from error


def lines(stream: IO[bytes], where: str) -> Iterator[bytes]:
    """The lines of a stream; one that is too long for a text is an error instead of a lot of memory."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(f"{where}: line {number} is longer than {LONGEST_LINE} bytes; it is another file")
        yield line
