"""Partitions: who gets which samples, when one pool of labelled samples is dealt to clients.

A partition is a frozen dataclass of its settings, called with the labels and a generator. None of them loops
until it is lucky: each gives an answer or an error after a fixed amount of work. A new partition is one file
here, or in a package of yours, named by its entry points `personafl.partitions`.
"""

from personafl.data.partitions.dirichlet import Dirichlet
from personafl.data.partitions.iid import IID
from personafl.data.partitions.lognormal import Lognormal
from personafl.data.partitions.natural import Natural
from personafl.data.partitions.pathological import Pathological
from personafl.data.partitions.powerlaw import PowerLaw
from personafl.federation.partition import Assignment, Indices, Partition
from personafl.registry import Registry, old_spellings

PARTITIONS = Registry(
    "partition",
    "personafl.partitions",
    [IID, Pathological, Dirichlet, Natural, PowerLaw, Lognormal],
    needs=("__call__",),
)

__all__ = [
    "IID", "PARTITIONS", "Assignment", "Dirichlet", "Indices", "Lognormal", "Natural", "Partition", "Pathological",
    "PowerLaw",
]  # fmt: skip

__getattr__ = old_spellings(__name__, {"Iid": "IID"})
