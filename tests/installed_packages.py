"""Packages that somebody might install beside personafl, made in a folder: modules and hand-written dist-info.

`orchard` is a good one. `weeds` and `moss` are not: names that others have, modules that cannot be imported. `evil` is
an importable module that leaves a file when it is imported: nothing but a user's own config may make that happen.
"""

from __future__ import annotations

from pathlib import Path

MODULES = {
    "orchard/__init__.py": "",
    "orchard/methods.py": '''
from dataclasses import dataclass
from typing import ClassVar

from personafl.algorithms import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    """Averages, by another name."""

    name: ClassVar[str] = "mine"
    strength: float = 0.5


@dataclass(frozen=True)
class Quiet(FedAvg):
    """Has no entry point."""

    name: ClassVar[str] = "quiet"


@dataclass(frozen=True)
class Other(FedAvg):
    name: ClassVar[str] = "quiet"


class Thawed(FedAvg):
    name: ClassVar[str] = "thawed"
    strength: float = 0.5


class Nothing:
    name = "nothing"


@dataclass(frozen=True)
class Slash(FedAvg):
    name: ClassVar[str] = "../slash"


@dataclass(frozen=True)
class Odd(FedAvg):
    name: ClassVar[str] = "odd"
    where: "Elsewhere" = None
''',
    "orchard/data.py": '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from personafl.data import Assignment, Samples


@dataclass(frozen=True)
class Blobs:
    """Two classes of points."""

    name: ClassVar[str] = "blobs"
    structure: ClassVar[str] = "pool"
    splits: ClassVar[tuple[float, float, float]] = (0.6, 0.2, 0.2)
    samples: int = 80

    def load(self, seed):
        rng = np.random.default_rng(seed)
        y = np.arange(self.samples) % 2
        return Samples(x=(rng.normal(size=(self.samples, 3)) + y[:, None]).astype(np.float32), y=y, classes=2)


@dataclass(frozen=True)
class Rows:
    """Every so-manieth sample."""

    name: ClassVar[str] = "rows"
    clients: int = 4

    def __call__(self, labels, rng):
        return Assignment([np.arange(first, len(labels), self.clients) for first in range(self.clients)])


class Load:
    pass
''',
    "orchard/nets.py": '''
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class Tiny:
    """A layer of a few units."""

    name: ClassVar[str] = "tiny"
    width: int = 4

    def build(self, shape, outputs, tables={}):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], self.width), nn.ReLU(), nn.Linear(self.width, outputs))


@dataclass(frozen=True)
class NoBuild:
    name: ClassVar[str] = "no-build"
''',
    "orchard/commands.py": '''
import typer


def pick(fruit: str, many: int = 1) -> None:
    """Pick fruit [ripe ones]."""
    print(f"{many} {fruit}")


tools = typer.Typer(help="Tools of the orchard.")


@tools.command()
def ladder() -> None:
    """Fetch the ladder."""
    print("a ladder")


@tools.command()
def basket() -> None:
    """Fetch the basket."""
    print("a basket")
''',
    "orchard/fruits.py": """
class Fruit:
    def __init__(self, colour):
        self.colour = colour

    def listed(self):
        return {"colour": self.colour}


FRUITS = {"apple": Fruit("red"), "pear": Fruit("green")}
""",
    "weeds/__init__.py": "",
    "weeds/broken.py": "import a_module_that_nobody_has",
    "weeds/leaving.py": "import sys; sys.exit(7)",
    "moss/__init__.py": "from orchard.methods import Quiet as Twin",
    "evil/__init__.py": "",
    "evil/module.py": """
import os
from pathlib import Path

Path(os.environ["TRAP"]).write_text("imported")


class Thing:
    name = "thing"
""",
}
ENTRY_POINTS = {
    "orchard": """
[personafl.algorithms]
mine = orchard.methods:Mine
twin = orchard.methods:Quiet
misnamed = orchard.methods:Other
[personafl.data]
blobs = orchard.data:Blobs
[personafl.partitions]
rows = orchard.data:Rows
[personafl.models]
tiny = orchard.nets:Tiny
[personafl.commands]
pick = orchard.commands:pick
tools = orchard.commands:tools
[personafl.lists]
fruits = orchard.fruits:FRUITS
""",
    "weeds": """
[personafl.algorithms]
broken = weeds.broken:Broken
leaving = weeds.leaving:Leaving
ditto = evil.module:Thing
[personafl.models]
broken = weeds.broken:Broken
mlp = evil.module:Thing
[personafl.commands]
spoilt = weeds.broken:command
run = evil.module:Thing
number = math:pi
[personafl.lists]
algorithms = evil.module:Thing
spoilt = weeds.broken:LIST
""",
    "moss": "[personafl.algorithms]\ntwin = moss:Twin\n",
}


def write_packages(folder: Path) -> None:
    """Write all of them below a folder that is then on the path."""
    for name, text in MODULES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for name, text in ENTRY_POINTS.items():
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-farm\nVersion: 1.0\n", "utf-8")
        (about / "entry_points.txt").write_text(text, "utf-8")
