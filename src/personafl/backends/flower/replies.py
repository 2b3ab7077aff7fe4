"""Fetching replies so that no site can make the others wait.

Flower announces a reply when its upload begins, and whoever fetches it then waits for its pieces, for minutes where
they do not come. So each reply is fetched in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError

from flwr.app import Message
from flwr.serverapp import Grid

from personafl.errors import DataError

AT_ONCE = 1.0
"""Seconds that one is waited for before others have their turn."""


class Replies:
    """The replies to messages that were pushed to a grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._fetched: dict[str, Future[list[Message]]] = {}

    def to(self, question: str) -> list[Message]:
        """The reply to a message; nothing where it is not there, or not whole yet.

        Raises
        ------
        DataError
            What came cannot be read: an error of whoever sent it, not of the run.
        """
        new = question not in self._fetched
        if new:
            self._fetched[question] = _in_thread(lambda: list(self._grid.pull_messages([question])))
        fetched = self._fetched[question]
        try:
            found = fetched.result(AT_ONCE if new else 0)
        except TimeoutError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            del self._fetched[question]
            raise DataError(f"the answer cannot be read: {type(error).__name__}") from error
        del self._fetched[question]
        return found


def _in_thread(work: Callable[[], list[Message]]) -> Future[list[Message]]:
    """What will be the result of some work; a thread that nobody waits for any more does not keep the process."""
    future: Future[list[Message]] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
