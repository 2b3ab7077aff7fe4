"""Algorithms, one file each.

To add one to personafl: write its file, and name its class here. One of your own needs neither: give it to `train`,
name it in a config as "package.module:Name", or let your package's entry points `personafl.algorithms` name it.
"""

from personafl.algorithms.afl import AFL
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
from personafl.algorithms.fedala import FedALA
from personafl.algorithms.fedamp import FedAMP, HeurFedAMP
from personafl.algorithms.fedavg import FedAvg, FedAvgFT
from personafl.algorithms.fedbabu import FedBABU
from personafl.algorithms.fedbe import FedBE
from personafl.algorithms.fedbn import FedBN
from personafl.algorithms.feddyn import FedDyn
from personafl.algorithms.fedem import FedEM
from personafl.algorithms.fedfomo import FedFomo
from personafl.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from personafl.algorithms.fedpa import FedPA
from personafl.algorithms.fedpac import FedPAC
from personafl.algorithms.fedper import FedPer
from personafl.algorithms.fedproto import FedProto
from personafl.algorithms.fedprox import FedProx, FedProxFT
from personafl.algorithms.fedrep import FedRep
from personafl.algorithms.fedrod import FedRoD
from personafl.algorithms.fml import FML
from personafl.algorithms.heterofl import HeteroFL
from personafl.algorithms.ifca import IFCA
from personafl.algorithms.knnper import KNNPer
from personafl.algorithms.lg_fedavg import LGFedAvg
from personafl.algorithms.lotteryfl import LotteryFL
from personafl.algorithms.mocha import MOCHA
from personafl.algorithms.moon import MOON
from personafl.algorithms.perfedavg import PerFedAvg
from personafl.algorithms.persfl import PersFL, PersFLGD
from personafl.algorithms.pfedhn import PFedHN
from personafl.algorithms.pfedme import PFedMe
from personafl.algorithms.qffl import QFFL
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
        FedAvgM,
        FedAdagrad,
        FedAdam,
        FedYogi,
        FedDyn,
        QFFL,
        AFL,
        FedPA,
        FedBE,
        APFL,
        Ditto,
        PFedMe,
        PerFedAvg,
        FedPer,
        FedEM,
        FedRep,
        FedBABU,
        LGFedAvg,
        FedRoD,
        FedALA,
        HeteroFL,
        LotteryFL,
        FedBN,
        MOON,
        KNNPer,
        FedPAC,
        FedProto,
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
    "AFL",
    "ALGORITHMS",
    "APFL",
    "CFL",
    "FML",
    "IFCA",
    "MOCHA",
    "MOON",
    "QFFL",
    "SCAFFOLD",
    "About",
    "Algorithm",
    "Context",
    "Ditto",
    "Each",
    "FedALA",
    "FedAMP",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgFT",
    "FedAvgM",
    "FedBABU",
    "FedBE",
    "FedBN",
    "FedDyn",
    "FedEM",
    "FedFomo",
    "FedPA",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedProxFT",
    "FedRep",
    "FedRoD",
    "FedYogi",
    "Gradient",
    "HeteroFL",
    "HeurFedAMP",
    "JobInfo",
    "KNNPer",
    "LGFedAvg",
    "LotteryFL",
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
