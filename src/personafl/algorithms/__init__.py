"""Algorithms, one file each.

To add one to personafl: write its file, and name its class here. One of your own needs neither: give it to `train`,
name it in a config as "package.module:Name", or let your package's entry points `personafl.algorithms` name it.
"""

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
from personafl.algorithms.cfl import CFL
from personafl.algorithms.ditto import Ditto
from personafl.algorithms.fedamp import FedAMP, HeurFedAMP
from personafl.algorithms.fedavg import FedAvg, FedAvgFT
from personafl.algorithms.fedbn import FedBN
from personafl.algorithms.fedfomo import FedFomo
from personafl.algorithms.fedper import FedPer
from personafl.algorithms.fedprox import FedProx, FedProxFT
from personafl.algorithms.fml import FML
from personafl.algorithms.ifca import IFCA
from personafl.algorithms.mocha import MOCHA
from personafl.algorithms.perfedavg import PerFedAvg
from personafl.algorithms.persfl import PersFL, PersFLGD
from personafl.algorithms.pfedhn import PFedHN
from personafl.algorithms.pfedme import PFedMe
from personafl.algorithms.scaffold import SCAFFOLD
from personafl.algorithms.selffl import SelfFL
from personafl.algorithms.selffl_aug import SelfFLAug
from personafl.algorithms.separate import Separate
from personafl.registry import Registry, old_spellings

ALGORITHMS = Registry(
    "algorithm",
    "personafl.algorithms",
    [
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
        FedBN,
        FedAMP,
        HeurFedAMP,
        CFL,
        IFCA,
        FedFomo,
        PFedHN,
        MOCHA,
        FML,
        PersFL,
        PersFLGD,
        SelfFL,
        SelfFLAug,
    ],
    base=Algorithm,
)

__all__ = [
    "ALGORITHMS",
    "APFL",
    "CFL",
    "FML",
    "IFCA",
    "MOCHA",
    "SCAFFOLD",
    "About",
    "Algorithm",
    "Context",
    "Ditto",
    "Each",
    "FedAMP",
    "FedAvg",
    "FedAvgFT",
    "FedBN",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedProxFT",
    "Gradient",
    "HeurFedAMP",
    "JobInfo",
    "Mean",
    "PFedHN",
    "PFedMe",
    "PerFedAvg",
    "PersFL",
    "PersFLGD",
    "Program",
    "SelfFL",
    "SelfFLAug",
    "Sent",
    "Separate",
    "Uplink",
    "Uploads",
]

OLD_SPELLINGS = {"Apfl": "APFL", "FedAmp": "FedAMP", "HeurFedAmp": "HeurFedAMP", "Scaffold": "SCAFFOLD"}
__getattr__ = old_spellings(__name__, OLD_SPELLINGS)
