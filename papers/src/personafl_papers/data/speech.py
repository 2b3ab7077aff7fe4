"""Google's Speech Commands: one-second clips of single words, of thousands of people (Warden 2018).

The corpus is a folder of wav files, the archive of that folder, or an .npz with a part of it. An archive is read as a
stream and never unpacked: its links and its names that lead elsewhere have nothing to act on.
"""

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from personafl.data.fetch import Remote, fetch
from personafl.data.readers import data_dirs
from personafl.errors import DataError
from personafl.federation.npz import read_npz
from personafl.storage.cache import prepared
from personafl_papers.data.audio import RATE, Codes, mulaw_encoded, read_wav

FOLDERS = ("speech_commands_v0.02", "speech_commands_v0.01")
NPZ = "speech_commands_8khz_mulaw.npz"
ARCHIVE = Remote(
    "speech_commands_v0.02.tar.gz",
    "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
    "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
    2428.9,
)

MOST_CLIPS = 250_000  # version 0.02 has 105,829
MOST_BYTES = 1 << 20  # of a clip; one second has 32,044

# word/SPEAKER_nohash_NUMBER.wav; the folder of background noise has no such files.
_CLIP = re.compile(r"(?:\./)?(?:speech_commands_v0\.0[12]/)?([a-z]+)/(([0-9a-f]+)_nohash_[0-9]+)\.wav")
_UNREADABLE = (OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, tarfile.TarError)


@dataclass(frozen=True, eq=False)
class Clips:
    """Clips in the order of their names.

    Attributes
    ----------
    codes : array
        (N, 8000) µ-law at 8 kHz. Shorter recordings are followed by silence, longer ones are cut.
    word, speaker, name : arrays of str
        (N,): what is said, by whom, and the clip's name, which no other has.
    """

    codes: Codes
    word: NDArray[np.str_]
    speaker: NDArray[np.str_]
    name: NDArray[np.str_]


@dataclass(frozen=True)
class Corpus:
    """Where the clips are, and what a cached result has to depend on besides that path."""

    path: Path
    state: dict[str, Any] = field(default_factory=dict)

    def clips(self) -> Clips:
        """Read the clips; those of wav files are kept in the cache, 8 kB each."""
        if self.path.suffix == ".npz":
            return _read_npz(self.path)
        return Clips(**prepared("speech", [self.path], {"version": 1, **self.state}, lambda: _read_wavs(self.path)))


def find_corpus(source: str) -> Corpus:
    """The first of the folder, the archive and the .npz that is there; else the archive is downloaded."""
    for folder in data_dirs():
        for place in (folder / name for name in (*FOLDERS, *(f"SpeechCommands/{name}" for name in FOLDERS))):
            if place.is_dir():
                return Corpus(place, {"files": _digest(place)})
        for file in (folder / name for name in (*(f"{name}.tar.gz" for name in FOLDERS), NPZ)):
            if file.is_file():
                return Corpus(file)
    wanted = f"the folder {FOLDERS[0]}, or {ARCHIVE.file}, or {NPZ} (audio_mulaw, label, speaker, classes)"
    return Corpus(fetch(source, [ARCHIVE], wanted)[0])


def _read_npz(file: Path) -> Clips:
    arrays = read_npz(file, {"audio_mulaw": (None, RATE), "label": (None,), "speaker": (None,)}, kinds="iu")
    words = read_npz(file, {"classes": (None,)}, kinds="U")["classes"]
    codes, label, speaker = arrays.values()
    if not len(codes) == len(label) == len(speaker):
        raise DataError(f"{file}: {len(codes)} clips, {len(label)} labels and {len(speaker)} speakers must be as many")
    if codes.dtype != np.uint8:
        raise DataError(f"{file}: audio_mulaw holds {codes.dtype} values, expected uint8")
    if (wrong := np.flatnonzero((label < 0) | (label >= len(words)))).size:
        raise DataError(f"{file}: label {label[wrong[0]]} of clip {wrong[0]} must be in 0 to {len(words) - 1}")
    word, who = words[label], speaker.astype(str)
    seen: dict[tuple[str, str], int] = {}
    names = []
    for pair in zip(word.tolist(), who.tolist(), strict=True):
        names.append(f"{pair[0]}/{pair[1]}/{seen.setdefault(pair, 0)}")
        seen[pair] += 1
    order = np.argsort(names)
    return Clips(codes[order], word[order], who[order], np.array(names)[order])


def _read_wavs(path: Path) -> dict[str, NDArray[Any]]:
    """The clips of a folder or an archive, as arrays."""
    codes = bytearray()  # grows without a second copy
    clips: dict[str, tuple[str, str]] = {}
    for named, content in _folder_clips(path) if path.is_dir() else _archive_clips(path):
        word, stem, speaker = named.groups()
        if f"{word}/{stem}" in clips:
            raise DataError(f"{path} holds {word}/{stem}.wav twice; get it again")
        if len(clips) == MOST_CLIPS:
            raise DataError(f"{path} holds more than {MOST_CLIPS} clips; Speech Commands has 105,829")
        clips[f"{word}/{stem}"] = word, speaker
        wave = read_wav(content, f"{path}: {named[0]}")[:RATE]
        codes += mulaw_encoded(np.pad(wave, (0, RATE - len(wave)))).tobytes()
    if not clips:
        raise DataError(f"{path} holds no clips; expected files such as zero/004ae714_nohash_0.wav")
    order = np.argsort(list(clips))
    words, speakers = (np.array(column) for column in zip(*clips.values(), strict=True))
    return {
        "codes": np.frombuffer(codes, np.uint8).reshape(-1, RATE)[order],
        "word": words[order],
        "speaker": speakers[order],
        "name": np.array(list(clips))[order],
    }


def _folder_clips(folder: Path) -> Iterator[tuple[re.Match[str], bytes]]:
    for name, file, size in _listed(folder):
        if named := _CLIP.fullmatch(name):
            _check_size(folder, name, size)
            yield named, file.read_bytes()


def _archive_clips(file: Path) -> Iterator[tuple[re.Match[str], bytes]]:
    try:
        with (
            gzip.open(file) as unpacked,
            tarfile.open(fileobj=_Forward(file, unpacked), mode="r:") as archive,  # type: ignore[arg-type,call-overload]
        ):
            for number, member in enumerate(archive):
                if number == 2 * MOST_CLIPS:
                    raise DataError(f"{file} holds more than {number} files; Speech Commands has 105,835")
                named = _CLIP.fullmatch(member.name)
                if named and member.isreg() and (content := archive.extractfile(member)):
                    _check_size(file, member.name, member.size)
                    yield named, content.read()
    except _UNREADABLE as error:
        raise DataError(f"cannot read {file}: {str(error) or type(error).__name__}; get the file again") from None


class _Forward:
    """What tarfile reads from: forward only, so that no offset makes a loop, and in pieces of bounded size.

    Left alone, tarfile takes as much memory as the header of a long name claims.
    """

    def __init__(self, file: Path, stream: IO[bytes]) -> None:
        self.file, self.stream = file, stream

    def tell(self) -> int:
        return self.stream.tell()

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MOST_BYTES:
            raise DataError(f"{self.file} is damaged: a header claims {size} bytes; get the file again")
        return self.stream.read(size)

    def seek(self, position: int) -> int:
        if position < self.stream.tell():
            raise DataError(f"{self.file} is damaged: a header leads back to byte {position}; get the file again")
        return self.stream.seek(position)


def _listed(folder: Path) -> list[tuple[str, Path, int]]:
    """The wav files in the folders of the words: name, path and size."""
    words = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("_")]
    return [
        (f"{word}/{entry.name}", Path(entry.path), entry.stat().st_size)
        for word in sorted(words)
        for entry in sorted(os.scandir(folder / word), key=lambda entry: entry.name)
        if entry.is_file()
    ]


def _digest(folder: Path) -> str:
    """Changes when a clip is added, removed or replaced; far faster than naming 100,000 files to the cache."""
    digest = blake2b(digest_size=16)
    for name, file, size in _listed(folder):
        digest.update(f"{name}\0{size}\0{os.stat(file).st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _check_size(place: Path, name: str, size: int) -> None:
    if not 0 <= size <= MOST_BYTES:
        raise DataError(f"{place}: {name} has {size} bytes; a clip of one second has about 32,000")
