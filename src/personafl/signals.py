"""Ctrl-C and SIGTERM: both ask a process to stop, and both leave what is done in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Handler = Callable[[int, Any], None]


class Interrupted(KeyboardInterrupt):
    """A signal asked to stop.

    Parameters
    ----------
    number
        Which one.
    saved
        Whether a run stopped after a round, with a checkpoint.
    """

    def __init__(self, number: int = signal.SIGINT, saved: bool = True) -> None:
        super().__init__()
        self.number, self.saved = number, saved


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a process ends with that was asked to stop: 130 for Ctrl-C, 143 for SIGTERM, as shells have it.

    >>> exit_code(KeyboardInterrupt()), exit_code(Interrupted(signal.SIGTERM))
    (130, 143)
    """
    return 128 + (stop.number if isinstance(stop, Interrupted) else signal.SIGINT)


def stop_at_once(number: int, frame: Any) -> None:
    """A handler."""
    raise Interrupted(number, saved=False)


@contextmanager
def on_stop(handler: Handler = stop_at_once) -> Iterator[None]:
    """Let a handler hear of Ctrl-C and SIGTERM for a while; nothing changes outside of the main thread.

    A SIGTERM that somebody else handles, such as Flower or Ray, stays theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = before[signal.SIGTERM] is signal.SIG_DFL or getattr(before[signal.SIGTERM], "personafl", False)
    heard = [signal.SIGINT, *([signal.SIGTERM] if ours else [])]

    def hear(number: int, frame: Any) -> None:
        handler(number, frame)

    hear.personafl = True  # type: ignore[attr-defined]
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
