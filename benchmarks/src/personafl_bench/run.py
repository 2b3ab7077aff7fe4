"""Times jobs, each contestant in turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personafl.engines.machine import cores
from personafl.errors import ConfigError
from personafl_bench import contest, machine
from personafl_bench.jobs import JOBS
from personafl_bench.picture import draw
from personafl_bench.report import tables

__all__ = ["JOBS", "draw", "find_peers", "run_bench", "tables"]

PLACE = Path("benchmarks/peers/.venv/bin/python")
"""What benchmarks/peers/install.sh makes, in a checkout."""


def run_bench(
    repeat: int = 5,
    threads: int | None = None,
    jobs: Sequence[str] = tuple(JOBS),
    peers: dict[str, str] | None = None,
    progress: contest.Progress | None = None,
) -> dict[str, Any]:
    """Time jobs, with `repeat` turns for everybody.

    Parameters
    ----------
    repeat
        Turns of each contestant; a turn is up to ten rounds, about a third of a second.
    threads
        Threads or processes that everybody may use; left out, all cores.
    jobs
        Keys of `JOBS`.
    peers
        Other libraries that take part, as `find_peers` finds them.

    Raises
    ------
    ConfigError
        There is no such job.
    """
    for key in jobs:
        if key not in JOBS:
            raise ConfigError(f"--jobs {key}: known jobs are {', '.join(f'{j.key} ({j.name})' for j in JOBS.values())}")
    if repeat < 1:
        raise ConfigError(f"--repeat {repeat}: at least 1")
    threads = cores() if threads is None else threads
    speed = machine.Speed(threads)
    speed.measure()
    say = progress or (lambda text: None)
    results = [contest.race(JOBS[key], repeat, threads, peers or {}, speed, say) for key in jobs]
    return {
        "threads": threads,
        "repeat": repeat,
        "gflops": speed.flops / 1e9,
        "gb_per_s": speed.bandwidth / 1e9,
        "jobs": results,
    }


def find_peers(python: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Other libraries: name to the interpreter that has it; and name to why it is not there.

    The interpreter that is named is asked; else that of `benchmarks/peers/.venv`, then the one that runs.
    """
    beside = [str(root / PLACE) for root in (Path(__file__).parents[3], Path()) if (root / PLACE).exists()]
    interpreters = [python] if python else [*beside[:1], sys.executable]
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, module in contest.PEERS.items():
        for interpreter in interpreters:
            reason = _missing(interpreter, name, module)
            if reason is None:
                found[name] = interpreter
                missing.pop(name, None)
                break
            missing[name] = reason
    return found, missing


def _missing(interpreter: str, name: str, module: str) -> str | None:
    """Why an interpreter cannot run a library, or None if it can."""
    needed = [module, *(["ray", "torch"] if name == "flower" else ["jax"] if name == "fedjax" else ["torch"])]
    code = f"import importlib.util as u; print(next((m for m in {needed} if u.find_spec(m) is None), ''))"
    try:
        done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{interpreter} cannot be run: {error}") from None
    absent = done.stdout.strip()
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it does not start"])[-1]
    return f"{interpreter} has no module {absent}" if absent else None
