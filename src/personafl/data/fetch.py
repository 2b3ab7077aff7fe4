"""Downloads into the cache: by checksum, whole or not at all."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from personafl.data.readers import missing
from personafl.errors import DataError
from personafl.storage.cache import VARIABLE as CACHE
from personafl.storage.cache import cache_dir, sweep
from personafl.version import __version__

log = logging.getLogger("personafl")

OFFLINE = "PERSONAFL_OFFLINE"
"""The environment variable that forbids downloads, set to 1."""

_TIMEOUT = 20.0  # seconds to connect, and between two pieces
_PIECE = 1 << 16
_MOST_EXCESS = 2  # a server that sends more than this many times the announced size is cut off


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded.

    Attributes
    ----------
    file
        Its name inside the cache folder; may contain folders.
    url
        Where it comes from.
    checksum
        "sha256:…" or "md5:…" of its bytes as they are stored.
    megabytes
        About its size.
    """

    file: str
    url: str
    checksum: str
    megabytes: float


def fetch(source: str, remotes: Sequence[Remote], wanted: str, why: str = "") -> list[Path]:
    """The files' paths in the cache, in their order; those that are not there are downloaded first.

    Parameters
    ----------
    source
        The data source, for messages.
    remotes : sequence of Remote
        The files.
    wanted, why
        As in `data.files.missing`, whose error is raised where a download is not possible or not allowed.
    """
    paths = [cache_dir() / remote.file for remote in remotes]
    lacking = [(remote, path) for remote, path in zip(remotes, paths, strict=True) if not path.is_file()]
    if not lacking:
        return paths
    if os.environ.get(OFFLINE, "0") not in ("", "0"):
        raise _by_hand(source, remotes, wanted, f"{why}, and {OFFLINE} forbids to download it")
    with _progress(source, sum(remote.megabytes for remote, _ in lacking)) as advance:
        for remote, path in lacking:
            log.info("downloading %s (%.0f MB) to %s", remote.url, remote.megabytes, path)
            with _disk_errors(source, path):
                path.parent.mkdir(parents=True, exist_ok=True)
                sweep(list(path.parent.glob(".*.partial")))
                # A name of its own for each process: two at once never write to the same file.
                partial = path.with_name(f".{path.name}.{uuid4().hex}.partial")
                try:
                    with open(partial, "wb") as file:
                        if trouble := _download(remote, _Sink(source, remote, file, advance)):
                            raise _by_hand(source, remotes, wanted, f"{why}, and {remote.url} {trouble}")
                        os.fsync(file.fileno())
                    _check(source, remote, partial)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)
    return paths


class _Sink:
    """A file to write to that reports progress, and that a server cannot fill without end."""

    def __init__(self, source: str, remote: Remote, file: BinaryIO, advance: Any) -> None:
        self.source, self.remote, self.file, self.advance = source, remote, file, advance
        self.left = _MOST_EXCESS * remote.megabytes * 1e6 + 1e6

    def write(self, piece: bytes) -> None:
        self.left -= len(piece)
        if self.left < 0:
            raise DataError(
                f"data {self.source}: {self.remote.url} sends more than {_MOST_EXCESS} times the expected "
                f"{self.remote.megabytes:g} MB, so it is not the file that is wanted; the download was stopped"
            )
        with _disk_errors(self.source, cache_dir() / self.remote.file):
            self.file.write(piece)
        self.advance(len(piece))

    def flush(self) -> None:
        """Nothing to do after each piece."""


def _download(remote: Remote, sink: _Sink) -> str:
    """Write a file's bytes to the sink; gives what went wrong on the way, or nothing."""
    import pooch

    # A server may announce a .gz file as the compressed form of another: the bytes are wanted as they are stored.
    get = pooch.HTTPDownloader(
        chunk_size=_PIECE,
        timeout=(_TIMEOUT, _TIMEOUT),
        # Some servers turn away what says it is Python.
        headers={"Accept-Encoding": "identity", "User-Agent": f"personafl/{__version__}"},
        hooks={"response": lambda response, **_: response.raw.headers.discard("Content-Encoding") and None},
    )
    try:
        get(remote.url, sink, None)
    except OSError as error:  # every error of requests is one; those of the disk are DataErrors by now
        answer = getattr(error, "response", None)
        return f"answers {answer.status_code}" if answer is not None else f"fails ({type(error).__name__})"
    return ""


def _check(source: str, remote: Remote, file: Path) -> None:
    import pooch

    kind, _, expected = remote.checksum.partition(":")
    found = pooch.file_hash(str(file), alg=kind)
    if found != expected.lower():
        raise DataError(
            f"data {source}: {remote.url} gave {file.stat().st_size} bytes with the wrong {kind} checksum {found}, "
            f"expected {expected}; the download was removed: try again, or put the right file at "
            f"{cache_dir() / remote.file}"
        )


def _by_hand(source: str, remotes: Sequence[Remote], wanted: str, why: str) -> DataError:
    """The error of `missing`, with where to get the files."""
    folders: dict[Path, list[str]] = {}
    for remote in remotes:
        path = cache_dir() / remote.file
        renamed = "" if remote.url.endswith(f"/{path.name}") else f" as {path.name}"
        folders.setdefault(path.parent, []).append(f"{remote.url}{renamed}")
    places = "; ".join(f"or download {', '.join(urls)} into {folder}" for folder, urls in folders.items())
    return DataError(f"{missing(source, wanted, why)}; {places}")


@contextmanager
def _disk_errors(source: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"data {source}: cannot write {path}: {error.strerror or error}; make room there, or name another cache "
            f"folder in the environment variable {CACHE}"
        ) from error


@contextmanager
def _progress(source: str, megabytes: float) -> Iterator[Any]:
    """A bar on standard error where that is a terminal; gives the function that moves it by some bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"downloading {source}", total=megabytes * 1e6)
        yield lambda size: bar.advance(task, size)
