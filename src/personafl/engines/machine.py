"""What an engine uses of the machine: cores, torch's threads, and memory that is kept between steps."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> str:
    """What the processor is called."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def reuse_memory() -> None:
    """Ask glibc to keep large blocks instead of handing them back after every step (page faults cost a fifth)."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        pass  # another C library: its defaults stay


def give_back_memory() -> None:
    """Hand what `reuse_memory` has kept back to the system: for the end of a run, as others may follow."""
    with suppress(OSError, AttributeError):  # another C library was not asked to keep anything
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads, and set it back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
