"""What starting costs, in processor seconds: the sentence on it in docs/performance.md.

    python benchmarks/start_up.py [--repeat 5]

Each line is a program in a process of its own: user and system time of the whole process, the median of the repeats.
They take turns, so that a busy machine disturbs all alike.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys

COMPLETION = {"_PERSONAFL_COMPLETE": "complete_bash", "COMP_WORDS": "personafl com", "COMP_CWORD": "1"}
PROGRAMS: dict[str, tuple[list[str], dict[str, str]]] = {
    "python": (["-c", "pass"], {}),
    "import typer": (["-c", "import typer"], {}),
    "personafl --help": (["-m", "personafl", "--help"], {}),
    "shell completion of a command": (["-m", "personafl"], COMPLETION),
    "import torch": (["-c", "import torch"], {}),
    "import torch, personafl": (["-c", "import torch, personafl"], {}),
    "and pf.train, pf.Federation, pf.Ditto": (
        ["-c", "import torch, personafl as pf; pf.train; pf.Federation; pf.Ditto"],
        {},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(parser.parse_args().repeat):
        for name, (arguments, environment) in PROGRAMS.items():
            seconds[name].append(cost(arguments, environment))
    for name, each in seconds.items():
        print(f"{name:40} {statistics.median(each):.2f} s (from {min(each):.2f} to {max(each):.2f})")


def cost(arguments: list[str], environment: dict[str, str]) -> float:
    """User and system seconds of a Python process."""
    before = spent()
    subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True
    )
    return spent() - before


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
