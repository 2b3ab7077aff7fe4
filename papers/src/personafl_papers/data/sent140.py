"""Sentiment140: tweets with the mood of the emoticon they had (Go, Bhayani and Huang 2009)."""

import csv
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from personafl.data.base import Samples, Structure
from personafl.data.fetch import Remote, fetch
from personafl.data.readers import data_dirs
from personafl.errors import ConfigError, DataError
from personafl.pretrained.huggingface import read_tokenizer
from personafl.pretrained.texts import token_lists
from personafl.storage.cache import prepared
from personafl_papers.data.text import Vocabulary, lines, opened, tokenize
from personafl_papers.data.vectors import Vectors, find_vectors

ARCHIVE = Remote(
    "trainingandtestdata.zip",
    "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
    "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
    81.4,
)
TWEETS = "training.1600000.processed.noemoticon.csv"
SMALL = "sent140.csv"
COLUMNS = ("target", "id", "date", "query", "user", "text")
SMALL_COLUMNS = ("target", "user", "date", "text")

MOST_TWEETS = 10_000_000
LONGEST_NAME = 64

Arrays = dict[str, NDArray[Any]]
_INPUTS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Sent140:
    """1.6 million tweets, negative (0) or positive (1), x the numbers of their first words, int64 of shape (N, tokens).

    Whose tweet it is, is known: without a partition, the users are the clients. The constants hold the words' vectors,
    `embedding` (row 0 is zeros, for padding and for words without a vector), and the words, `vocabulary`.

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache, where it is
    downloaded to: trainingandtestdata.zip, or of it training.1600000.processed.noemoticon.csv, or sent140.csv with the
    header target,user,date,text, these two with or without gzip.

    Neutral tweets are left out. So are tweets that occur under both labels (they had both emoticons), and all but one
    of tweets that occur several times: the same user, second and text. A note says how many.

    Parameters
    ----------
    tokens
        So many words of a tweet are used; shorter ones are padded at the end.
    vectors
        The file of the word vectors, such as "glove.6B.100d.txt"; "auto" takes the longest of GloVe's that are there.
    tokenizer
        The folder of a tokenizer of transformers. x is then what a pretrained model reads, `input_ids` and
        `attention_mask` of the first so many tokens, and there are no word vectors. The tweets are the same.
    """

    name: ClassVar[str] = "sent140"
    default_model: ClassVar[str] = "lstm"
    structure: ClassVar[Structure] = "natural"
    splits: ClassVar[tuple[float, float, float] | None] = (0.8, 0.0, 0.2)

    tokens: int = 25
    vectors: str = "auto"
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= 280:
            raise ConfigError(f"data sent140: tokens = {self.tokens} must be in 1 to 280: it counts words of a tweet")

    def load(self, seed: int) -> Samples:
        """The samples; there is nothing random in them, so the seed has no effect."""
        arrays = self._arrays() if self.tokenizer is None else self._tokens(Path(self.tokenizer).expanduser())
        return Samples(
            x=arrays["x"] if "x" in arrays else {what: arrays[what] for what in _INPUTS},
            y=arrays["y"].astype(np.int64),
            classes=2,
            clients=arrays["users"][arrays["owner"]],
            constants={what: arrays[what] for what in ("embedding", "vocabulary") if what in arrays},
            notes=_notes(*arrays["left_out"].tolist()),
        )

    def _arrays(self) -> Arrays:
        """With the words' numbers and vectors."""
        file, member = _file()
        vectors = find_vectors(self.vectors, self.name)
        settings = {"version": 1, "tokens": self.tokens, "vectors": vectors.member}
        make = partial(_prepare, file, member, vectors, self.tokens)
        return prepared(self.name, [file, vectors.file], settings, make)

    def _tokens(self, folder: Path) -> Arrays:
        """With the tokens of a pretrained model."""
        file, member = _file()
        tokenizer = read_tokenizer(folder)
        if tokenizer is None:
            raise ConfigError(f"data sent140: tokenizer = {self.tokenizer!r}: there is no tokenizer in this folder")
        files = [file, *sorted(path for path in folder.iterdir() if path.suffix in (".json", ".txt", ".model"))]
        make = partial(_prepare_tokens, file, member, tokenizer, self.tokens)
        return prepared(f"{self.name}-tokens", files, {"version": 1, "tokens": self.tokens}, make)


def _file() -> tuple[Path, str | None]:
    """The CSV file, or the zip and which of its files it is."""
    for folder in data_dirs():
        for named in (TWEETS, f"{TWEETS}.gz", ARCHIVE.file, SMALL, f"{SMALL}.gz"):
            if (file := folder / named).is_file():
                return file, TWEETS if named == ARCHIVE.file else None
    wanted = f"{ARCHIVE.file}, or {TWEETS} or {SMALL} (target,user,date,text), these with or without .gz,"
    return fetch(Sent140.name, [ARCHIVE], wanted)[0], TWEETS


def _prepare(file: Path, member: str | None, vectors: Vectors, tokens: int) -> Arrays:
    """Everything that follows from the files, as arrays."""
    numbers: dict[str, int] = {}
    ids = array("i")

    def take(text: str) -> None:
        found = tokenize(text)[:tokens]
        ids.extend([numbers.setdefault(word, len(numbers) + 1) for word in found] + [0] * (tokens - len(found)))

    kept, arrays = _read(file, member, take)
    x = np.frombuffer(ids, np.int32).reshape(-1, tokens)[kept]
    uses = np.bincount(x.ravel(), minlength=len(numbers) + 1)[1:]
    order = np.argsort(-uses, kind="stable")
    spelled = list(numbers)
    words = [spelled[position] for position in order[: np.count_nonzero(uses)]]
    positions, table = vectors.read(words)
    renumbered = np.zeros(len(numbers) + 1, np.int32)
    renumbered[order[positions] + 1] = np.arange(1, len(positions) + 1)
    return {
        "x": renumbered[x],
        **arrays,
        "embedding": np.concatenate([np.zeros((1, table.shape[1]), np.float32), table]),
        "vocabulary": Vocabulary(tuple(words[position] for position in positions)).as_array(),
    }


def _prepare_tokens(file: Path, member: str | None, tokenizer: Any, tokens: int) -> Arrays:
    """The same tweets in the same order, as the tokens of a pretrained model."""
    texts: list[str] = []
    kept, arrays = _read(file, member, texts.append)
    made = token_lists([text for text, stays in zip(texts, kept, strict=True) if stays], tokenizer, tokens)
    longest = max(map(len, made["input_ids"]))
    ids = np.full((len(made["input_ids"]), longest), tokenizer.pad_token_id or 0, np.int32)
    mask = np.zeros(ids.shape, np.uint8)
    for row, (found, real) in enumerate(zip(made["input_ids"], made["attention_mask"], strict=True)):
        ids[row, : len(found)], mask[row, : len(real)] = found, real
    return {"input_ids": ids, "attention_mask": mask, **arrays}


def _read(file: Path, member: str | None, take: Callable[[str], None]) -> tuple[NDArray[np.bool_], Arrays]:
    """Which of the tweets that were handed over to `take` stay, and what is known of those besides their text."""
    users: dict[str, int] = {}
    labels, owner, keys = bytearray(), array("i"), bytearray()
    neutral = 0
    for tweet in _tweets(file, member):
        if tweet.target == "2":
            neutral += 1
            continue
        take(tweet.text)
        labels.append(tweet.target == "4")
        owner.append(users.setdefault(tweet.user, len(users)))
        keys += blake2b(f"{tweet.user}\0{tweet.date}\0{tweet.text}".encode(), digest_size=8).digest()
        if len(labels) > MOST_TWEETS:
            raise DataError(f"{file} holds more than {MOST_TWEETS} tweets; Sentiment140 has 1.6 million")
    if not labels:
        raise DataError(f"{file} holds no positive or negative tweet")
    y = np.frombuffer(labels, np.uint8)
    kept, both, repeated = _distinct(np.frombuffer(keys, np.uint64), y)
    return kept, {
        "y": y[kept],
        "owner": np.frombuffer(owner, np.int32)[kept],
        "users": np.array([f"user-{user}" if user.isdigit() else user for user in users]),
        "left_out": np.array([neutral, both, repeated]),
    }


def _distinct(keys: NDArray[np.uint64], y: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], int, int]:
    """Which tweets to keep; how many distinct ones occur under both labels, and how many are mere repetitions."""
    _, first, which, times = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    positive = np.bincount(which, weights=y)
    torn = (positive > 0) & (positive < times)
    kept = np.zeros(len(keys), bool)
    kept[first[~torn]] = True
    return kept, int(torn.sum()), int((times[~torn] - 1).sum())


class _Tweet(NamedTuple):
    target: str
    user: str
    date: str
    text: str


def _tweets(file: Path, member: str | None) -> Iterator[_Tweet]:
    where = f"{file}: {member}" if member else str(file)
    with opened(file, member) as stream:
        source = lines(stream, where)
        first = next(source, b"")
        small = first.rstrip(b"\r\n") == ",".join(SMALL_COLUMNS).encode()
        # Latin-1 is what LEAF reads the original by: it is not UTF-8 throughout.
        encoding, header = ("utf-8", []) if small else ("latin-1", [first] if first else [])
        rows = csv.reader(line.decode(encoding) for line in chain(header, source))
        columns = SMALL_COLUMNS if small else COLUMNS
        try:
            for row in rows:
                line = rows.line_num + small
                if len(row) != len(columns):
                    raise DataError(f"{where}: line {line} has {len(row)} columns, expected {', '.join(columns)}")
                named = dict(zip(columns, row, strict=True))
                tweet = _Tweet(*(named[what] for what in _Tweet._fields))
                if tweet.target not in ("0", "2", "4"):
                    raise DataError(f"{where}: line {line}: the label {tweet.target[:20]!r} must be 0, 2 or 4")
                if not 1 <= len(tweet.user) <= LONGEST_NAME:
                    raise DataError(
                        f"{where}: line {line}: the user {tweet.user[:20]!r} must have 1 to {LONGEST_NAME} letters"
                    )
                yield tweet
        except csv.Error as error:
            raise DataError(f"{where}: line {rows.line_num + small}: {error}") from error


def _notes(neutral: int, both: int, repeated: int) -> tuple[str, ...]:
    counted = ((neutral, "neutral"), (both, "under both labels"), (repeated, "repeated"))
    told = ", ".join(f"{count} {what}" for count, what in counted if count)
    return (f"data sent140: tweets left out: {told}",) if told else ()
