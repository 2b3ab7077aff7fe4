"""personafl: personalized federated learning.

Many clients hold data that cannot be pooled and is not alike. personafl trains a model for each of them, and lets
the others help.

This is the table of contents: each name is imported when it is first used, so that `import personafl` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from personafl.version import __version__

if TYPE_CHECKING:
    from personafl import data, metrics, pretrained, tasks
    from personafl.algorithms import (
        AFL,
        ALGORITHMS,
        APFL,
        CFL,
        FML,
        IFCA,
        MOCHA,
        MOON,
        QFFL,
        SCAFFOLD,
        About,
        Algorithm,
        Context,
        Ditto,
        Each,
        FedAdagrad,
        FedAdam,
        FedALA,
        FedAMP,
        FedAvg,
        FedAvgFT,
        FedAvgM,
        FedBABU,
        FedBE,
        FedBN,
        FedDyn,
        FedEM,
        FedFomo,
        FedPA,
        FedPAC,
        FedPer,
        FedProto,
        FedProx,
        FedProxFT,
        FedRep,
        FedRoD,
        FedYogi,
        Gradient,
        HeteroFL,
        HeurFedAMP,
        JobInfo,
        KNNPer,
        LGFedAvg,
        LotteryFL,
        Mean,
        PerFedAvg,
        PersFL,
        PersFLGD,
        PFedHN,
        PFedMe,
        Program,
        SelfFL,
        SelfFLAug,
        Sent,
        Separate,
        Uplink,
        Uploads,
    )  # fmt: skip
    from personafl.comparison import Comparison, compare
    from personafl.data import partitions as partition
    from personafl.errors import PersonaflError
    from personafl.federation import Federation
    from personafl.fitting.fit import fit
    from personafl.fitting.result import Fit, load_fit
    from personafl.jobs import train
    from personafl.kernels.task import Task
    from personafl.runs.run import Run, load, load_run
    from personafl.runs.trackers import MLflow, TensorBoard
    from personafl.runs.weights_and_biases import WandB
    from personafl.settings import EngineSettings, Local, RaySettings, Schedule
    from personafl.states import State
    from personafl.study.audit import audit
    from personafl.tasks import Metric
    from personafl.training.events import Listener
    from personafl.training.explain import Explanation, explain
    from personafl.training.privacy import Privacy
    from personafl.training.robust import Robust

_HOMES = {
    "algorithms": "AFL ALGORITHMS APFL About Algorithm CFL Context Ditto Each FML FedALA FedAMP FedAdagrad FedAdam "
    "FedAvg FedAvgFT FedAvgM FedBABU FedBE FedBN FedDyn FedEM FedFomo FedPA FedPAC FedPer FedProto "
    "FedProx FedProxFT FedRep FedRoD FedYogi Gradient HeteroFL HeurFedAMP IFCA JobInfo KNNPer LGFedAvg "
    "LotteryFL MOCHA MOON Mean PFedHN PFedMe PerFedAvg PersFL PersFLGD Program QFFL SCAFFOLD SelfFL "
    "SelfFLAug Sent Separate Uplink Uploads",
    "comparison": "Comparison compare",
    "errors": "PersonaflError",
    "federation": "Federation",
    "fitting.fit": "fit",
    "fitting.result": "Fit load_fit",
    "jobs": "train",
    "kernels.task": "Task",
    "runs.run": "Run load load_run",
    "runs.trackers": "MLflow TensorBoard",
    "runs.weights_and_biases": "WandB",
    "settings": "EngineSettings Local RaySettings Schedule",
    "states": "State",
    "study.audit": "audit",
    "tasks": "Metric",
    "training.events": "Listener",
    "training.explain": "Explanation explain",
    "training.privacy": "Privacy",
    "training.robust": "Robust",
}
_HOME = {name: f"personafl.{module}" for module, names in _HOMES.items() for name in names.split()}
_MODULES = {
    "data": "personafl.data",
    "metrics": "personafl.metrics",
    "partition": "personafl.data.partitions",
    "pretrained": "personafl.pretrained",
    "tasks": "personafl.tasks",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
    else:
        return _old_spelling(name)
    globals()[name] = found
    return found


def _old_spelling(name: str) -> Any:
    """Classes as an earlier version spelled them: `Apfl`, `FedAmp`, …"""
    if name.startswith("_"):
        raise AttributeError(f"module 'personafl' has no attribute {name!r}")
    algorithms = import_module("personafl.algorithms")
    if name not in algorithms.OLD_SPELLINGS:
        raise AttributeError(f"module 'personafl' has no attribute {name!r}")
    return getattr(algorithms, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])


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
    "Comparison",
    "Context",
    "Ditto",
    "Each",
    "EngineSettings",
    "Explanation",
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
    "Federation",
    "Fit",
    "Gradient",
    "HeteroFL",
    "HeurFedAMP",
    "JobInfo",
    "KNNPer",
    "LGFedAvg",
    "Listener",
    "Local",
    "LotteryFL",
    "MLflow",
    "Mean",
    "Metric",
    "PFedHN",
    "PFedMe",
    "PerFedAvg",
    "PersFL",
    "PersFLGD",
    "PersonaflError",
    "Privacy",
    "Program",
    "RaySettings",
    "Robust",
    "Run",
    "Schedule",
    "SelfFL",
    "SelfFLAug",
    "Sent",
    "Separate",
    "State",
    "Task",
    "TensorBoard",
    "Uplink",
    "Uploads",
    "WandB",
    "__version__",
    "audit",
    "compare",
    "data",
    "explain",
    "fit",
    "load",
    "load_fit",
    "load_run",
    "metrics",
    "partition",
    "pretrained",
    "tasks",
    "train",
]  # fmt: skip
