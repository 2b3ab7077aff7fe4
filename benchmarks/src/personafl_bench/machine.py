"""What this machine can do, and what the processes of a contestant have taken. The latter is known on Linux only."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import torch

from personafl.engines.machine import torch_threads

SIDE = 1024
COPIED = 1 << 26


class Speed:
    """The best seen so far of a large matrix product (operations a second) and of a copy (bytes a second)."""

    def __init__(self, threads: int) -> None:
        self.threads, self.flops, self.bandwidth = threads, 0.0, 0.0
        self._a, self._b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
        self._from, self._to = torch.rand(COPIED // 4), torch.empty(COPIED // 4)

    def measure(self) -> None:
        with torch_threads(self.threads):
            for _ in range(3):
                begun = time.perf_counter()
                torch.mm(self._a, self._b)
                between = time.perf_counter()
                self._to.copy_(self._from)
                ended = time.perf_counter()
                self.flops = max(self.flops, 2 * SIDE**3 / (between - begun))
                self.bandwidth = max(self.bandwidth, 2 * COPIED / (ended - between))

    def least(self, flops: float, bytes: float) -> float:
        """Seconds that so many operations and so many bytes take at the least."""
        return max(flops / self.flops, bytes / self.bandwidth)


def family(root: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name is in brackets and may contain anything; after it come the state and the parent.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
        children[parent].append(int(entry.name))
    found = [root]
    for process in found:
        found += children[process]
    return found


def cpu_seconds(processes: list[int]) -> float:
    """Processor time that these processes have taken so far, all threads together."""
    total = 0.0
    for process in processes:
        try:
            total += time.clock_gettime((~process << 3) | 2)  # Linux's clock of another process, clock_getcpuclockid(3)
        except (OSError, AttributeError):
            continue
    return total


def peak_memory(processes: list[int]) -> int | None:
    """Bytes: the most that was resident of each of these processes, added up."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total or None
