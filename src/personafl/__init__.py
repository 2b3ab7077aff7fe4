"""personafl: personalized federated learning.

Many clients hold data that cannot be pooled and is not alike. personafl trains a model for each of them, and lets
the others help.
"""

from personafl import data
from personafl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Apfl,
    Ditto,
    FedAmp,
    FedAvg,
    FedAvgFT,
    FedPer,
    FedProx,
    FedProxFT,
    HeurFedAmp,
    Local,
    PerFedAvg,
    PersFL,
    PersFLGD,
    PFedMe,
    Scaffold,
    SelfFL,
    SelfFLAug,
    Separate,
)
from personafl.config import RaySettings
from personafl.data import partition
from personafl.errors import PersonaflError
from personafl.events import Listener
from personafl.federation import Federation
from personafl.privacy import Privacy
from personafl.run import Run, load
from personafl.task import Task
from personafl.trackers import MLflow, TensorBoard
from personafl.train import train
from personafl.version import __version__

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Apfl",
    "Ditto",
    "FedAmp",
    "FedAvg",
    "FedAvgFT",
    "FedPer",
    "FedProx",
    "FedProxFT",
    "Federation",
    "HeurFedAmp",
    "Listener",
    "Local",
    "MLflow",
    "PFedMe",
    "PerFedAvg",
    "PersFL",
    "PersFLGD",
    "PersonaflError",
    "Privacy",
    "RaySettings",
    "Run",
    "Scaffold",
    "SelfFL",
    "SelfFLAug",
    "Separate",
    "Task",
    "TensorBoard",
    "__version__",
    "data",
    "load",
    "partition",
    "train",
]
