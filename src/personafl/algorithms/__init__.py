"""Algorithms, one file each. To add one: write its file, and name its class here."""

from personafl.algorithms.apfl import Apfl
from personafl.algorithms.base import Algorithm, Context, Gradient, Local, Program, Sent, Setting, State, Uploads
from personafl.algorithms.ditto import Ditto
from personafl.algorithms.fedamp import FedAmp, HeurFedAmp
from personafl.algorithms.fedavg import FedAvg, FedAvgFT
from personafl.algorithms.fedper import FedPer
from personafl.algorithms.fedprox import FedProx, FedProxFT
from personafl.algorithms.perfedavg import PerFedAvg
from personafl.algorithms.persfl import PersFL, PersFLGD
from personafl.algorithms.pfedme import PFedMe
from personafl.algorithms.scaffold import Scaffold
from personafl.algorithms.selffl import SelfFL
from personafl.algorithms.selffl_aug import SelfFLAug
from personafl.algorithms.separate import Separate

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        Separate,
        FedAvg,
        FedAvgFT,
        FedProx,
        FedProxFT,
        Scaffold,
        Apfl,
        Ditto,
        PFedMe,
        PerFedAvg,
        FedPer,
        FedAmp,
        HeurFedAmp,
        PersFL,
        PersFLGD,
        SelfFL,
        SelfFLAug,
    )
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Apfl",
    "Context",
    "Ditto",
    "FedAmp",
    "FedAvg",
    "FedAvgFT",
    "FedPer",
    "FedProx",
    "FedProxFT",
    "Gradient",
    "HeurFedAmp",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "PersFL",
    "PersFLGD",
    "Program",
    "Scaffold",
    "SelfFL",
    "SelfFLAug",
    "Sent",
    "Separate",
    "Setting",
    "State",
    "Uploads",
]
