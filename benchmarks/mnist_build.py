"""How long the FedProx MNIST federation takes to load and build, and how much memory.

    PERSONAFL_DATA=… python benchmarks/mnist_build.py [--json]

1,000 clients by `powerlaw`, each measurement in a process of its own: the first load, which reads the files and fills
an empty cache; the second, which maps it; and both followed by the build. Seconds are those of the clock and those of
the processor, which a busy machine does not change. Memory is the most that is taken above what Python and torch took
before, as a multiple of x and y: resident, which counts mapped pages of the cache that the kernel may drop at any time,
and anonymous, which leaves these out. The targets are 3 seconds and 3 times the data.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SECONDS, RATIO = 3.0, 3.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true", help="print JSON alone")
    arguments.add_argument("--measure", choices=("load", "build"), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.measure:
        print(json.dumps(measure(build=given.measure == "build")))
        return
    results = {}
    for what in ("load", "build"):
        with tempfile.TemporaryDirectory() as cache:
            for time_of in ("first", "second"):
                results[f"{time_of} {what}"] = in_a_new_process(what, cache)
    if given.json:
        print(json.dumps(results))
        return
    print("| | seconds | of the processor | resident memory / data | anonymous memory / data |\n|-|-|-|-|-|")
    for name, found in results.items():
        row = (found[key] for key in ("seconds", "processor", "resident", "anonymous"))
        print(f"| {name} |", " | ".join(f"{value:.2f}" for value in row), "|")
    builds = [found for name, found in results.items() if "build" in name]
    kept = all(found["seconds"] < SECONDS and found["resident"] <= RATIO for found in builds)
    print(f"target of {SECONDS:g} seconds and {RATIO:g} times the data: {'kept' if kept else 'missed'}")


def in_a_new_process(what: str, cache: str) -> dict[str, float]:
    environment = {**os.environ, "PERSONAFL_CACHE": cache}
    command = [sys.executable, __file__, "--measure", what]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def measure(build: bool) -> dict[str, float]:
    import torch

    from personafl.data import MNIST, PowerLaw
    from personafl.data import build as build_federation

    torch.set_num_threads(1)
    with Watch() as watch:
        made = build_federation(MNIST(), PowerLaw(clients=1000), seed=0) if build else MNIST().load(0)
    size = made.x.nbytes + made.y.nbytes
    return {
        "seconds": watch.seconds,
        "processor": watch.processor,
        "resident": watch.resident / size,
        "anonymous": watch.anonymous / size,
        "bytes": size,
    }


class Watch:
    """Time, and the most memory above that at the start; anonymous memory is looked up every two milliseconds."""

    def __enter__(self) -> "Watch":
        self.before, self.anonymous = status("VmRSS"), 0
        self.anonymous_before = status("RssAnon")
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        self.started = time.perf_counter(), time.process_time()
        return self

    def look(self) -> None:
        while not self.done.wait(0.002):
            self.anonymous = max(self.anonymous, status("RssAnon") - self.anonymous_before)

    def __exit__(self, *error: object) -> None:
        self.seconds, self.processor = time.perf_counter() - self.started[0], time.process_time() - self.started[1]
        self.done.set()
        self.thread.join()
        self.resident = max(0, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.before)


def status(key: str) -> int:
    """Bytes that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


if __name__ == "__main__":
    main()
