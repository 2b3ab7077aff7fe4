"""How a contestant of `personafl bench` learns its job, and what it says: a line of JSON for every line of JSON."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Given:
    """A job as the folder has it: `train` (M, 2) says where each client's training samples begin and end."""

    settings: dict[str, Any]
    x: Array
    y: Array
    train: Array
    theta0: Array

    @classmethod
    def load(cls, folder: str | Path) -> "Given":
        read = {name: np.load(Path(folder, f"{name}.npy"), mmap_mode="c") for name in ("x", "y", "train", "theta0")}
        return cls(json.loads(Path(folder, "job.json").read_text()), **read)


def serve(step: Callable[[], Any], model: Callable[[], Array], **about: Any) -> None:
    """Answer until standard input ends: do so many rounds, write the global model to a file.

    Whatever the library prints goes to standard error.
    """
    with _answers() as say:
        say(about)
        for line in sys.stdin:
            request = json.loads(line)
            if "save" in request:
                np.save(request["save"], np.asarray(model(), np.float32))
                say({})
                continue
            seconds = []
            for _ in range(request["rounds"]):
                begun = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - begun)
            say({"seconds": seconds})


class Gate:
    """Rounds one at a time, for a library whose own loop calls back after every round."""

    def __init__(self) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)

    def step(self) -> None:
        """For `serve`: let the library do a round, and wait for its end."""
        self._go.release()
        self._done.acquire()

    def wait(self, round_ended: bool) -> None:
        """For the library's callback: wait for the next round to be asked for."""
        if round_ended:
            self._done.release()
        self._go.acquire()


def serve_beside(step: Callable[[], Any], model: Callable[[], Array], **about: Any) -> None:
    """`serve` in a thread beside the library's loop; the process ends when no more is asked for."""

    def answer() -> None:
        serve(step, model, **about)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=answer, daemon=True).start()


def faster(step: Callable[[], Any], choose: Callable[[int], Any], counts: list[int]) -> int:
    """Which number of threads is the faster for a round; it is left chosen."""
    times = {}
    for count in dict.fromkeys(counts):
        choose(count)
        step()
        begun = time.perf_counter()
        step()
        times[count] = time.perf_counter() - begun
    best = min(times, key=lambda count: times[count])
    choose(best)
    return best


@contextlib.contextmanager
def _answers() -> Any:
    with os.fdopen(os.dup(1), "w") as stream:
        os.dup2(2, 1)

        def say(answer: dict[str, Any]) -> None:
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

        yield say
