"""Several runs at once on this machine: a launcher, a process and its share of the cores for each."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

from personafl.config import Config
from personafl.errors import ConfigError, PersonaflError, RunError
from personafl.federation import Federation
from personafl.jobs import config_job, run_job
from personafl.study.launch import Listeners, PendingRun, in_process
from personafl.training.job import Job

Key = TypeVar("Key")
Result = TypeVar("Result")
Call = tuple[Key, Callable[..., Result], tuple[Any, ...]]
"""What stands for a call, a function that another process can import, and its arguments."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """Makes runs in processes, which are started when first needed and end with this context.

    The cores are shared out: a run whose config leaves `engine.threads` open gets as many as there are cores for each.
    The engine should be a fixed one; then the runs are the same to the byte, however many go on at once.

    Parameters
    ----------
    at_once
        How many runs go on at once; left out, as many as there are cores. One is this process itself.
    given
        What is sent to every process once, when it starts; functions that are called there ask for it (`given()`).

    Examples
    --------
    >>> with Processes(at_once=2) as processes:
    ...     run_plan(planned, folder, launcher=processes)  # doctest: +SKIP
    """

    def __init__(self, at_once: int | None = None, given: Any = None) -> None:
        self.at_once, self._given = at_once or cores(), given
        self.threads = max(1, cores() // self.at_once)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._pool is None:
            return
        if kind is not None:  # as Ctrl-C does to a single run: each ends its round and saves
            for process in list(self._pool._processes or ()):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGINT)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def __call__(self, due: Iterator[PendingRun], listeners: Listeners) -> Generator[tuple[PendingRun, str | None]]:
        due = map(self._with_threads, due)
        if self.at_once == 1:
            yield from in_process(due, listeners)
            return

        def call(one: PendingRun) -> Call[PendingRun, str | None]:
            listeners(one.job, False)
            # The data of a config is made there anew: it is larger than what it is made from.
            recipe = one.job.recipe
            sent = recipe if isinstance(recipe, Config) else _pickled(recipe.job(one.federation))
            return one, _make, (sent, one.path)

        yield from self.results(map(call, due))

    def results(self, calls: Iterator[Call[Key, Result]]) -> Generator[tuple[Key, Result]]:
        """Have functions called in the processes; what each gave, with its key, as they end."""
        if self.at_once == 1:
            for key, function, arguments in calls:
                yield key, function(*arguments)
            return
        going: dict[Future[Result], Key] = {}
        while True:
            for key, function, arguments in islice(calls, self.at_once - len(going)):
                going[self._submit(function, *arguments)] = key
            if not going:
                return
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                try:
                    yield going.pop(future), future.result()
                except BrokenProcessPool:
                    raise RunError(
                        "a process that trained was killed, perhaps for want of memory: the same command goes on from "
                        "the last checkpoints; fewer runs at once take less memory"
                    ) from None

    def _with_threads(self, one: PendingRun) -> PendingRun:
        """With as many threads as it asks for, or else its share of the cores."""
        recipe = one.job.recipe
        engine = replace(recipe.engine, threads=recipe.engine.threads or self.threads)
        return replace(one, job=replace(one.job, recipe=replace(recipe, engine=engine)))

    def _submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.at_once, multiprocessing.get_context("spawn"), _prepare, (self.threads, _pickled(self._given))
            )
        return self._pool.submit(function, *arguments)


def _pickled(job: Any) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:  # whatever somebody's module or loss raises
        raise _not_sent(error) from error


def _not_sent(error: Exception) -> ConfigError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return ConfigError(
        f"the module, its loss or the algorithm cannot be sent to another process ({reason}): define them in a "
        "file that can be imported, or make one run at a time"
    )


# --- in a process of its own

_stopped = False
_sent = b""


def _prepare(threads: int, sent: bytes) -> None:
    """Threads; a process group of its own, so that Ctrl-C reaches it once, by its parent; an end with the parent."""
    global _sent
    _sent = sent
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, _note_stop)
    torch.set_num_threads(threads)
    logging.getLogger("personafl").setLevel(logging.ERROR)  # what the data has to say, the parent has said
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _note_stop(number: int, frame: Any) -> None:
    global _stopped
    _stopped = True


@cache
def given() -> Any:
    """What the `Processes` that started this process was given."""
    return _unpickled(_sent)


def stopped() -> bool:
    """Whether this process was asked to stop; what is called then ends at once."""
    return _stopped


def _make(sent: Config | bytes, path: Path) -> str | None:
    """Why it failed; None if it did not."""
    job: Job | None = (
        _unpickled(sent) if isinstance(sent, bytes) else None
    )  # what cannot be sent is no failure of one run
    try:
        if isinstance(sent, Config):
            job = config_job(sent, _federation(sent))
        if stopped():
            raise KeyboardInterrupt
        run_job(job, path, True)  # type: ignore[arg-type]
    except RunError:
        raise
    except PersonaflError as error:
        return str(error)
    return None


_latest: tuple[str, Federation] | None = None


def _federation(config: Config) -> Federation:
    """The one of the run before, where that had the same data: to load and divide it takes seconds of every run."""
    global _latest
    makes = ("seed", "data", "partition", "splits", "splitting", "backbone", "model")
    key = json.dumps({name: value for name, value in config.tables().items() if name in makes})
    if _latest is None or _latest[0] != key:
        _latest = None  # two of them would take twice the memory
        _latest = (key, config.federation())
    return _latest[1]


def _unpickled(sent: bytes) -> Any:
    """What our own parent process sent."""
    try:
        return pickle.loads(sent)
    except Exception as error:
        raise _not_sent(error) from error
