"""personafl: personalized federated learning.

Many clients hold data that cannot be pooled and is not alike. personafl trains a model for each of them, and lets
the others help.
"""

from personafl import data
from personafl.algorithms import (
    ALGORITHMS,
    APFL,
    SCAFFOLD,
    Algorithm,
    Ditto,
    FedAMP,
    FedAvg,
    FedAvgFT,
    FedPer,
    FedProx,
    FedProxFT,
    HeurFedAMP,
    PerFedAvg,
    PersFL,
    PersFLGD,
    PFedMe,
    SelfFL,
    SelfFLAug,
    Separate,
)
from personafl.data import partition
from personafl.errors import PersonaflError
from personafl.federation import Federation
from personafl.jobs import train
from personafl.kernels.task import Task
from personafl.runs.run import Run, load
from personafl.runs.trackers import MLflow, TensorBoard
from personafl.settings import Local, RaySettings
from personafl.training.events import Listener
from personafl.training.privacy import Privacy
from personafl.version import __version__

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "APFL",
    "Ditto",
    "FedAMP",
    "FedAvg",
    "FedAvgFT",
    "FedPer",
    "FedProx",
    "FedProxFT",
    "Federation",
    "HeurFedAMP",
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
    "SCAFFOLD",
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
