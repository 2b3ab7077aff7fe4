"""Partitions: who gets which samples, when one pool of labelled samples is dealt to clients.

A partition is a frozen dataclass of its settings, called with the labels and a generator. None of them loops
until it is lucky: each gives an answer or an error after a fixed amount of work. A new partition is one file in
`data/partitions` and one entry in `PARTITIONS`.
"""

from personafl.data.partitions.dirichlet import Dirichlet
from personafl.data.partitions.iid import IID
from personafl.data.partitions.lognormal import Lognormal
from personafl.data.partitions.natural import Natural
from personafl.data.partitions.pathological import Pathological
from personafl.data.partitions.powerlaw import PowerLaw
from personafl.federation.partition import Assignment, Indices, Partition
from personafl_papers.partitions.ds1 import DS1
from personafl_papers.partitions.ds2 import DS2
from personafl_papers.partitions.ds3 import DS3
from personafl_papers.partitions.ds4 import DS4
from personafl_papers.partitions.pfedme import PFedMeUsers
from personafl_papers.partitions.practical import Practical

PARTITIONS: dict[str, type] = {
    kind.name: kind
    for kind in (
        IID, Pathological, Dirichlet, Natural, PowerLaw, Lognormal, PFedMeUsers, Practical, DS1, DS2, DS3, DS4,
    )
}  # fmt: skip

__all__ = [
    "PARTITIONS",
    "Assignment",
    "Dirichlet",
    "DS1",
    "DS2",
    "DS3",
    "DS4",
    "IID",
    "Indices",
    "Lognormal",
    "Natural",
    "PFedMeUsers",
    "Partition",
    "Pathological",
    "PowerLaw",
    "Practical",
]
