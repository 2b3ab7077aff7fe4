"""Algorithms, one file each. To add one: write its file, and name its class here."""

from personafl.algorithms.apfl import APFL
from personafl.algorithms.base import (
    About,
    Algorithm,
    Context,
    Each,
    Gradient,
    JobInfo,
    Mean,
    Program,
    Sent,
    Uplink,
    Uploads,
)
from personafl.algorithms.ditto import Ditto
from personafl.algorithms.fedamp import FedAMP, HeurFedAMP
from personafl.algorithms.fedavg import FedAvg, FedAvgFT
from personafl.algorithms.fedper import FedPer
from personafl.algorithms.fedprox import FedProx, FedProxFT
from personafl.algorithms.perfedavg import PerFedAvg
from personafl.algorithms.persfl import PersFL, PersFLGD
from personafl.algorithms.pfedme import PFedMe
from personafl.algorithms.scaffold import SCAFFOLD
from personafl.algorithms.selffl import SelfFL
from personafl.algorithms.selffl_aug import SelfFLAug
from personafl.algorithms.separate import Separate
from personafl.settings import Local
from personafl.states import State

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        Separate,
        FedAvg,
        FedAvgFT,
        FedProx,
        FedProxFT,
        SCAFFOLD,
        APFL,
        Ditto,
        PFedMe,
        PerFedAvg,
        FedPer,
        FedAMP,
        HeurFedAMP,
        PersFL,
        PersFLGD,
        SelfFL,
        SelfFLAug,
    )
}

__all__ = [
    "ALGORITHMS",
    "About",
    "Algorithm",
    "APFL",
    "Context",
    "Ditto",
    "Each",
    "FedAMP",
    "FedAvg",
    "FedAvgFT",
    "FedPer",
    "FedProx",
    "FedProxFT",
    "Gradient",
    "HeurFedAMP",
    "Local",
    "Mean",
    "PFedMe",
    "PerFedAvg",
    "PersFL",
    "PersFLGD",
    "Program",
    "SCAFFOLD",
    "SelfFL",
    "SelfFLAug",
    "Sent",
    "Separate",
    "JobInfo",
    "State",
    "Uplink",
    "Uploads",
]
