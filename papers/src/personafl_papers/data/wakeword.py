"""Wake-word detection by five types of devices that hear Google's Speech Commands."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from personafl.data.base import Samples, Structure
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from personafl.federation.arrays import Indices
from personafl.federation.splits import bounds_of
from personafl.storage.cache import prepared
from personafl.streams import generator
from personafl_papers.data.audio import MOST_MELS, frames, log_mel, mulaw_decoded
from personafl_papers.data.devices import STATES, recorded
from personafl_papers.data.speech import Clips, find_corpus
from personafl_papers.data.speech_windows import BANDS, FRAMES, STARTS, windows

PAPER_SIZES = {
    "A": (43_922, 12_011, 0),
    "B": (28_852, 4_223, 646),
    "C": (10_404, 4_336, 0),
    "D": (76_804, 21_511, 1_427),
    "E": (51_097, 10_985, 1_318),
}
"""Audio streams of each device type in the states normal, playback and alarm: Table 2 of the Self-FL preprint."""

MEAN, SPREAD = -14.0, 3.0  # about those of the log-mel features; constants, so that they tell nobody of others' data

_TRAIN, _VALIDATION, _TEST = 0, 1, 2
_CLIPS_AT_ONCE = 256


@dataclass(frozen=True)
class Wakeword:
    """Is this the wake word (1) or another word (0)? x are log-mel spectrograms, float32 of shape (N, 1, mels, 98).

    A stand-in for the private recordings of the Self-FL paper: real speech, heard by the simulated device types A to E
    in the states normal, playback and alarm, whose numbers are in `data/devices.py`. A client has one device type, its
    group. Training data divides over types and states as in the paper's Table 2; all clips of a person are with one
    client.

    Some people are in no training data: their clips are the test data, heard by every device type in each of its states
    (A and C have no alarm), so that each state has enough of them to measure. `states_tested` says in which
    state a test sample is; `truth` has the numbers of samples in each state, (M, 3), as train_states, val_states and
    test_states.

    Read from the directory that the environment variable PERSONAFL_DATA names, or from the cache: the folder
    speech_commands_v0.02 or speech_commands_v0.01 (also inside a folder SpeechCommands), or its .tar.gz, or
    speech_commands_8khz_mulaw.npz. Where there is none, the archive is downloaded to the cache (2.4 GB).

    Parameters
    ----------
    word
        The wake word, any of the corpus.
    clients
        Clients of each device type, with equal shares of its data: 1 in the paper's main study, 4 where clients are
        sampled.
    negatives
        At most so many clips of other words for each of the wake word, drawn at random; the .npz has fewer.
    test
        Clips held out for testing, for each of the others.
    validation
        The share of a client's other clips that is for validation, of people who are not in its training data.
    mels
        Bands of the spectrogram.
    melspectrogram
        For Google's speech embedding: its file melspectrogram.onnx, by which x become windows (N, 2, 76, 32, 1), see
        `data/speech_windows.py`.
    """

    name: ClassVar[str] = "wakeword"
    default_model: ClassVar[str] = "wakeword-cnn"
    structure: ClassVar[Structure] = "own"
    splits: ClassVar[tuple[float, float, float] | None] = None

    word: str = "zero"
    clients: int = 1
    negatives: int = 9
    test: float = 0.2
    validation: float = 0.0
    mels: int = 40
    melspectrogram: str | None = None

    def __post_init__(self) -> None:
        for setting, lowest, highest, why in (
            ("clients", 1, 10_000, "it counts clients of a device type"),
            ("negatives", 1, 1_000_000, "it counts clips of other words for each of the wake word"),
            ("test", 0.01, 100, "it is the size of the test data in terms of the rest"),
            ("validation", 0, 0.5, "it is a share of the data that is not for testing"),
            ("mels", 1, MOST_MELS, "it counts bands of the spectrogram"),
        ):
            if not lowest <= (value := getattr(self, setting)) <= highest:
                raise ConfigError(f"data wakeword: {setting} = {value} must be in {lowest} to {highest}: {why}")

    def load(self, seed: int) -> Samples:
        """The recordings; who is heard by whom, and all sounds and noise, follow from the seed."""
        corpus = find_corpus(self.name)
        own = {key: value for key, value in asdict(self).items() if value is not None}
        settings = {"version": 1, "seed": seed, **own, **corpus.state}
        files = [corpus.path, *([self._front()] if self.melspectrogram else [])]
        arrays = prepared(self.name, files, settings, lambda: self._prepare(corpus.clips(), seed))
        left_out, of = arrays["left_out"].tolist()
        note = f"{left_out} of {of} clips of other words left out: negatives = {self.negatives}"
        return Samples(
            x=arrays["x"],
            y=arrays["y"],
            classes=2,
            clients=np.array(self._ids()),
            groups=np.repeat(list(PAPER_SIZES), self.clients),
            bounds=bounds_of(arrays["counts"].sum(axis=2)),
            truth={f"{split}_states": arrays["counts"][:, k] for k, split in enumerate(("train", "val", "test"))},
            notes=(note,) if left_out else (),
        )

    def _front(self) -> Path:
        file = Path(str(self.melspectrogram)).expanduser()
        if not file.is_file():
            raise ConfigError(f"data wakeword: melspectrogram = {self.melspectrogram!r}: there is no such file")
        return file

    def _ids(self) -> list[str]:
        return [f"{device}-{number}" for device in PAPER_SIZES for number in range(1, self.clients + 1)]

    def _prepare(self, corpus: Clips, seed: int) -> dict[str, NDArray[Any]]:
        """Choose the clips, deal them to clients, record them, and turn them into spectrograms."""
        wake = corpus.word == self.word
        if not wake.any() or wake.all():
            known = ", ".join(map(str, np.unique(corpus.word)))
            raise ConfigError(f"data wakeword: word = {self.word!r} must be one of several words; there are {known}")
        others = generator(seed, "wakeword/others").permutation(np.flatnonzero(~wake))
        chosen = others[: self.negatives * int(wake.sum())]
        kept = np.sort(np.concatenate([np.flatnonzero(wake), chosen]))
        clip, client, split, state = self._plan(corpus.speaker[kept], seed)
        clip = kept[clip]
        counts = np.zeros((len(self._ids()), 3, len(STATES)), np.int64)
        np.add.at(counts, (client, split, state), 1)
        if (idle := np.flatnonzero(counts[:, _TRAIN].sum(axis=1) == 0)).size:
            raise DataError(
                f"data wakeword: the clips of {len(np.unique(corpus.speaker[kept]))} people are too few for "
                f"{len(counts)} clients: {self._ids()[idle[0]]} has none to train on; use fewer clients a device type"
            )
        return {
            "x": self._spectrograms(corpus, clip, client // self.clients, state, seed),
            "y": wake[clip].astype(np.int64),
            "counts": counts,
            "left_out": np.array([len(others) - len(chosen), len(others)]),
        }

    def _plan(self, speakers: NDArray[np.str_], seed: int) -> Indices:
        """What is recorded, in a federation's order: the clips, their clients, splits and states, (4, N)."""
        _, person = np.unique(speakers, return_inverse=True)
        sizes = np.bincount(person)
        paper = np.array(list(PAPER_SIZES.values()))

        def draw(what: str) -> np.random.Generator:
            return generator(seed, f"wakeword/{what}")

        def clips_of(people: Indices) -> Indices:
            return np.flatnonzero(np.isin(person, people))

        held_out = deal(sizes, [1, self.test], draw("test")) == 1
        natives, guests = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        home = deal(sizes[natives], np.repeat(paper.sum(axis=1), self.clients), draw("clients"))
        rows = []
        for m, client in enumerate(self._ids()):
            device, number = divmod(m, self.clients)
            own = natives[home == m]
            parts = deal(sizes[own], [1 - self.validation, self.validation], draw(f"{client}/validation"))
            for split in (_TRAIN, _VALIDATION):
                clips = draw(f"{client}/{split}").permutation(clips_of(own[parts == split]))
                rows.append((clips, m, split, np.repeat(np.arange(3), apportioned(len(clips), paper[device]))))
            visited = deal(sizes[guests], np.ones(self.clients), draw(f"test/{device}"))
            clips, states = clips_of(guests[visited == number]), np.flatnonzero(paper[device])
            rows.append((np.tile(clips, len(states)), m, _TEST, np.repeat(states, len(clips))))
        return np.concatenate([np.stack(np.broadcast_arrays(*row)) for row in rows], axis=1)

    def _spectrograms(
        self, corpus: Clips, clip: Indices, device: Indices, state: Indices, seed: int
    ) -> NDArray[np.float32]:
        shape: tuple[int, ...] = (1, self.mels, frames(corpus.codes.shape[1]))
        if self.melspectrogram:
            shape = (len(STARTS), FRAMES, BANDS, 1)
        out = np.empty((len(clip), *shape), np.float32)
        for number, name in enumerate(PAPER_SIZES):
            own = np.flatnonzero(device == number)
            for some in np.array_split(own, max(1, -(-len(own) // _CLIPS_AT_ONCE))):
                waves = mulaw_decoded(corpus.codes[clip[some]])
                states = [STATES[k] for k in state[some]]
                heard = recorded(waves, name, states, corpus.name[clip[some]].tolist(), seed)
                if self.melspectrogram:
                    out[some] = windows(heard, self._front())
                else:
                    out[some] = (log_mel(heard, self.mels) - MEAN) / SPREAD
        return out


def states_tested(federation: Federation) -> NDArray[np.str_]:
    """The state, such as "playback", of each test sample, client after client: the order of a run's predictions."""
    counts = federation.truth["test_states"]
    return np.repeat(np.tile(STATES, len(counts)), counts.ravel())


def deal(sizes: ArrayLike, shares: ArrayLike, rng: np.random.Generator) -> Indices:
    """Who gets which lot, so that the sizes of what each gets are as near as can be in proportion to the shares.

    Large lots come first, those of about the same size in random order; each goes to whom it makes least full.

    >>> owner = deal([5, 1, 1, 1, 1, 1], [1, 1], np.random.default_rng(0))
    >>> bool((owner[1:] != owner[0]).all())
    True
    """
    sizes, shares = np.asarray(sizes), np.asarray(shares, float)
    takers = np.flatnonzero(shares > 0)
    owner, held = np.zeros(len(sizes), np.int64), np.zeros(len(takers))
    shuffled = rng.permutation(len(sizes))
    for lot in shuffled[np.argsort(-np.log2(sizes[shuffled]).astype(int), kind="stable")]:
        taker = np.argmin((held + sizes[lot]) / shares[takers])
        held[taker] += sizes[lot]
        owner[lot] = takers[taker]
    return owner


def apportioned(total: int, shares: ArrayLike) -> Indices:
    """Whole numbers in proportion to the shares that add up to the total, by largest remainder.

    >>> apportioned(10, [1, 2, 4]).tolist()
    [1, 3, 6]
    """
    ideal = total * np.asarray(shares, float) / np.sum(shares)
    counts: Indices = np.floor(ideal).astype(np.int64)
    counts[np.argsort(counts - ideal, kind="stable")[: total - counts.sum()]] += 1
    return counts
