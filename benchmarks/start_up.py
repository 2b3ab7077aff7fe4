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

PLAIN = """
import torch
from torch import nn
x, y = torch.rand(10, 64), torch.randint(0, 10, (10,))
net = nn.Linear(64, 10)
nn.functional.cross_entropy(net(x), y).backward()
"""
OPTIMIZER = "torch.optim.SGD(net.parameters(), lr=0.1).step()"
FIRST_STEP = """
import os, shutil, sys, tempfile
from pathlib import Path
from personafl.cli import main
from personafl.training.clients import LocalClients
place = tempfile.mkdtemp()
train = LocalClients.train
def once(*arguments):
    train(*arguments)
    shutil.rmtree(place)
    os._exit(0)
LocalClients.train = once
Path(place, "config.toml").write_text('''
activity = 0.5
data.name = "digits"
partition = {name = "dirichlet", clients = 40, alpha = 0.3}
local = {lr = 0.1, batch_size = 10, steps = 1}
algorithm.name = "fedamp"
''')
sys.argv = ["personafl", "run", place + "/config.toml", "--out", place + "/run"]
main()
"""
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
    "plain torch, a step by hand": (["-c", PLAIN], {}),
    "plain torch, a step of torch.optim": (["-c", PLAIN + OPTIMIZER], {}),
    "personafl run, the first step of a round": (["-c", FIRST_STEP], {}),
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
