"""Algorithms, one file each. To add one: write its file, and name its class here."""

from personafl.algorithms.base import Algorithm, Context, Gradient, Local, Program, Sent, State, Uploads
from personafl.algorithms.fedavg import FedAvg, FedAvgFT
from personafl.algorithms.fedprox import FedProx, FedProxFT
from personafl.algorithms.separate import Separate

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        Separate,
        FedAvg,
        FedAvgFT,
        FedProx,
        FedProxFT,
    )
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Context",
    "FedAvg",
    "FedAvgFT",
    "FedProx",
    "FedProxFT",
    "Gradient",
    "Local",
    "Program",
    "Sent",
    "Separate",
    "State",
    "Uploads",
]
