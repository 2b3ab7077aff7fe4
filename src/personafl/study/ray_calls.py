"""Calls on Ray: functions called side by side on the machines of a cluster, as `Processes` does it on this one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from personafl.backends.ray.start import connect
from personafl.engines.machine import torch_threads
from personafl.errors import PersonaflError, RunError
from personafl.settings import require_ray
from personafl.study.processes import Call, Key, Result
from personafl.study.ray_launcher import check_machines, cpus, line, stop_tasks


class RayCalls:
    """Has functions called on a Ray that is connected; see `calls_on_ray`.

    Attributes
    ----------
    at_once
        How many calls go on at a time.
    threads
        Torch threads, and so CPUs, of each.
    """

    def __init__(self, at_once: int, threads: int, given: Any) -> None:
        import ray

        self.at_once, self.threads = at_once, threads
        # In a list, a reference is not exchanged for what it stands for: a process asks for that once.
        self._given = [ray.put(given)]
        self._going: dict[Any, Any] = {}

    def __enter__(self) -> RayCalls:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        stop_tasks(list(self._going))
        self._going.clear()

    def results(self, calls: Iterator[Call[Key, Result]]) -> Generator[tuple[Key, Result]]:
        """What each call gave, with its key, as they end. The functions take what was given first."""
        import ray

        task = ray.remote(num_cpus=self.threads, max_retries=1)(_called)
        while True:
            for key, function, arguments in islice(calls, self.at_once - len(self._going)):
                self._going[task.remote(self._given, self.threads, function, arguments)] = key
            if not self._going:
                return
            ended, _ = ray.wait(list(self._going))
            for ref in ended:
                yield self._going.pop(ref), _result(ref)


@contextmanager
def calls_on_ray(
    folder: Path, address: str | None, at_once: int | None, threads: int, given: Any
) -> Iterator[RayCalls]:
    """Ray as a place for calls.

    Parameters
    ----------
    folder
        What the calls read and write; all machines must see it.
    address
        See `backends.ray.start.connect`.
    at_once
        How many calls at a time; left out, or more than the CPUs of the cluster allow, as many as these.
    threads
        Of each call.
    given
        What every function takes first. It is sent to each process once.
    """
    require_ray("on = 'ray'")
    with connect(address):
        check_machines(folder)
        most = max(1, cpus() // threads)  # more would wait there, and their time would not begin
        yield RayCalls(min(at_once or most, most), threads, given)


def _result(ref: Any) -> Any:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(ref)
    except RayTaskError as broken:
        if isinstance(broken.cause, PersonaflError):
            raise broken.cause from None
        raise
    except RayError as broken:
        raise RunError(
            f"a process on Ray died twice ({type(broken).__name__}: {line(broken)}): the same command goes on from "
            "what was trained; fewer at once take less memory"
        ) from None


# --- what runs there -------------------------------------------------------------------------------------------------

_known: dict[Any, Any] = {}


def _called(given: list[Any], threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import ray

    [ref] = given
    if ref not in _known:
        _known.clear()
        _known[ref] = ray.get(ref)
    with torch_threads(threads):
        return function(_known[ref], *arguments)
