"""Partitions: who gets which samples, when one pool of labelled samples is dealt to clients.

A partition is a frozen dataclass of its settings, called with the labels and a generator. None of them loops
until it is lucky: each gives an answer or an error after a fixed amount of work. A new partition is one file in
`data/partitions` and one entry in `PARTITIONS`.
"""

from personafl.data.partitions.base import Assignment, Indices, Partition
from personafl.data.partitions.dirichlet import Dirichlet
from personafl.data.partitions.ds1 import Ds1
from personafl.data.partitions.ds2 import Ds2
from personafl.data.partitions.ds3 import Ds3
from personafl.data.partitions.ds4 import Ds4
from personafl.data.partitions.iid import Iid
from personafl.data.partitions.lognormal import Lognormal
from personafl.data.partitions.natural import Natural
from personafl.data.partitions.pathological import Pathological
from personafl.data.partitions.pfedme import PFedMeUsers
from personafl.data.partitions.powerlaw import PowerLaw
from personafl.data.partitions.practical import Practical

PARTITIONS: dict[str, type] = {
    kind.name: kind
    for kind in (
        Iid, Pathological, Dirichlet, Natural, PowerLaw, Lognormal, PFedMeUsers, Practical, Ds1, Ds2, Ds3, Ds4,
    )
}  # fmt: skip

__all__ = [
    "PARTITIONS",
    "Assignment",
    "Dirichlet",
    "Ds1",
    "Ds2",
    "Ds3",
    "Ds4",
    "Iid",
    "Indices",
    "Lognormal",
    "Natural",
    "PFedMeUsers",
    "Partition",
    "Pathological",
    "PowerLaw",
    "Practical",
]
