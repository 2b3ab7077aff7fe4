"""personafl: personalized federated learning.

Many clients hold data that cannot be pooled and is not alike. personafl trains a model for each of them, and lets
the others help.
"""

from personafl import data
from personafl.algorithms import ALGORITHMS, Algorithm, FedAvg, FedAvgFT, FedProx, FedProxFT, Local, Separate
from personafl.data import partition
from personafl.errors import PersonaflError
from personafl.events import Listener
from personafl.federation import Federation
from personafl.run import Run, load
from personafl.task import Task
from personafl.train import train
from personafl.version import __version__

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "FedAvg",
    "FedAvgFT",
    "FedProx",
    "FedProxFT",
    "Federation",
    "Listener",
    "Local",
    "PersonaflError",
    "Run",
    "Separate",
    "Task",
    "__version__",
    "data",
    "load",
    "partition",
    "train",
]
