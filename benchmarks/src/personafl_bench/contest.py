"""The contest: every contestant is a process of its own, and they take short turns, so that noise hits all alike.

A turn is a few rounds. While one contestant has its turn, the others wait for a line on their standard input.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from personafl_bench import machine
from personafl_bench.jobs import Job
from personafl_bench.own import contestants

PEERS = {"pfl": "pfl", "flower": "flwr", "fedjax": "fedjax", "fedlab": "fedlab"}
"""Libraries that take part, and the module that shows whether one is installed."""

WARM_UP, TURN, MOST_ROUNDS, PATIENCE = 3, 0.3, 10, 900.0
TOLERANCE = 0.25
_ADAPTERS = Path(__file__).parent / "peers"
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "PYTHONPATH": str(_ADAPTERS),
    "PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu",
}  # fmt: skip
Progress = Callable[[str], None]


class LeftOut(Exception):
    """A contestant cannot take part; the text says why."""


class Contestant:
    """A process that does rounds when it is asked to."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name, self._log = name, folder / f"{name.replace(' ', '-')}.log"
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, **environment},
            )  # fmt: skip

    def introduce(self) -> None:
        """Wait until it is ready to do rounds."""
        self.about = self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise LeftOut(self._reason()) from None
        return self._answer()

    def turn(self, rounds: int) -> None:
        """Do some rounds, and keep what each took."""
        before = machine.cpu_seconds(machine.family(self._process.pid))
        self.seconds += self.ask(rounds=rounds)["seconds"]
        self.cpu.append((machine.cpu_seconds(machine.family(self._process.pid)) - before) / rounds)

    def memory(self) -> int | None:
        return machine.peak_memory(machine.family(self._process.pid))

    def end(self) -> None:
        """The end of its input ends it; what does not end is killed, with all that it started."""
        processes = machine.family(self._process.pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            pass
        for process in processes:
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise LeftOut(f"no answer for {PATIENCE:.0f} seconds" if not ready else self._reason())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reason(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "ended without a word"


def race(
    job: Job, repeat: int, threads: int, peers: dict[str, str], speed: machine.Speed, progress: Progress
) -> dict[str, Any]:
    """Have everybody do a job in turns; what each took, and who was left out and why.

    `peers` maps names of `PEERS` to the interpreter that has the library.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        job.save(folder, threads)
        theirs = {} if job.what != "round" else peers
        commands = {name: [sys.executable, "-m", "personafl_bench.own", name] for name in contestants(job)}
        commands |= {name: [python, str(_ADAPTERS / f"with_{name}.py")] for name, python in theirs.items()}
        entered: list[Contestant] = []
        left_out: dict[str, str] = {}

        losses: dict[str, float] = {}

        @contextmanager
        def leaving_out(contestant: Contestant) -> Iterator[None]:
            try:
                yield
            except LeftOut as reason:
                left_out[contestant.name] = str(reason)
                entered.remove(contestant)
                contestant.end()

        try:
            # One after another: what they try out in their warm-up should not be disturbed by others that start.
            for name, command in commands.items():
                progress(f"{job.name}: {name} warms up")
                contestant = Contestant(name, command, folder, _ENVIRONMENT if name in PEERS else {})
                entered.append(contestant)
                with leaving_out(contestant):
                    contestant.introduce()
                    contestant.turn(WARM_UP)
                    if job.what == "round" and (name == "personafl" or name in PEERS):
                        losses[name] = _loss(job, contestant, folder)
            for turn in range(repeat):
                progress(f"{job.name}: turn {turn + 1} of {repeat}")
                speed.measure()
                for contestant in list(entered):
                    with leaving_out(contestant):
                        contestant.turn(min(MOST_ROUNDS, max(1, round(TURN / min(contestant.seconds[1:])))))
            measured = {contestant.name: _measured(contestant, losses) for contestant in entered}
        finally:
            for contestant in entered:
                contestant.end()
    return _judged(job, measured, left_out, speed)


def _measured(contestant: Contestant, losses: dict[str, float]) -> dict[str, Any]:
    milliseconds = 1e3 * np.array(contestant.seconds[WARM_UP:])
    memory = contestant.memory()
    return {
        "min_ms": float(milliseconds.min()),
        "median_ms": float(np.median(milliseconds)),
        "cpu_ms": 1e3 * min(contestant.cpu[1:]),
        "peak_mb": None if memory is None else memory / 1e6,
        "loss": losses.get(contestant.name),
        "rounds": len(milliseconds),
        "version": contestant.about.get("version"),
        "setting": contestant.about["setting"],
    }


def _judged(
    job: Job, measured: dict[str, dict[str, Any]], left_out: dict[str, str], speed: machine.Speed
) -> dict[str, Any]:
    flops, bytes = job.least
    first = contestants(job)[0]
    base = measured.get(first)
    for entry in measured.values():
        entry["ratio"] = None if base is None else entry["min_ms"] / base["min_ms"]
        entry["median_ratio"] = None if base is None else entry["median_ms"] / base["median_ms"]
    start = _mean_loss(job, job.task().theta0) if job.what == "round" else None
    for entry in measured.values():
        # Cohorts differ from library to library, so only the progress that was made can be compared.
        if base is not None and start is not None and entry["loss"] is not None:
            entry["learns"] = abs((start - entry["loss"]) / (start - base["loss"]) - 1) <= TOLERANCE
    return {
        "job": job.key,
        "name": job.name,
        "about": job.about,
        "data": job.federation().name,
        "limit_ms": 1e3 * speed.least(flops, bytes),
        "least_gflop": flops / 1e9,
        "least_mb": bytes / 1e6,
        "loss_before": start,
        "rounds_before_loss": WARM_UP,
        "compared_with": first,
        "contestants": measured,
        "left_out": left_out,
    }


def _loss(job: Job, contestant: Contestant, folder: Path) -> float:
    file = folder / "theta.npy"
    contestant.ask(save=str(file))
    return _mean_loss(job, torch.from_numpy(np.load(file)))


def _mean_loss(job: Job, theta: torch.Tensor) -> float:
    """The mean loss of a global model over the training samples of all clients."""
    task, federation = job.task(), job.federation()
    rows = torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in federation.bounds[:, :2]]))
    total = 0.0
    with torch.no_grad():
        for some in rows.split(1000):
            total += float(task.objective(task.predict(theta, federation.x[some]), federation.y[some]).sum())
    return total / len(rows)
