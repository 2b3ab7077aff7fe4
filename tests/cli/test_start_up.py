"""Facts about starting: what a command or an import does not need is not imported."""

import os
import re
import subprocess
import sys

from personafl.files import make_folder, write_text
from personafl.storage.folder import RunFolder

HEAVY = {"torch", "numpy", "scipy", "pyarrow", "matplotlib", "sklearn", "pandas", "pydantic", "rich"}
OPTIONAL = {"matplotlib", "scipy", "sklearn", "pandas", "ray", "flwr", "mlflow", "tensorboard", "onnx", "datasets"}


def imported(*arguments, **environment):
    """What a Python process prints, and the packages that it has imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    packages = set(re.findall(r"^import time:.*\| *(\w+)[^|]*$", done.stderr, re.MULTILINE))
    assert "encodings" in packages
    return done.stdout, packages


def test_help_imports_no_library_that_trains_or_draws():
    shown, packages = imported("-m", "personafl", "--help")
    assert "Usage: personafl" in shown and "typer" in packages
    assert not packages & HEAVY


def test_completion_imports_none_either():
    words = {"COMP_WORDS": "personafl run --res", "COMP_CWORD": "2"}
    shown, packages = imported("-m", "personafl", _PERSONAFL_COMPLETE="complete_bash", **words)
    assert shown.split() == ["--resume"]
    assert not packages & HEAVY


TRAINING = """
import numpy as np, torch, personafl as pf
fed = pf.Federation.from_clients({"a": (np.ones((4, 3), "float32"), [0, 1, 0, 1])})
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
pf.train(fed, net, pf.Ditto(), rounds=1, engine="loop", progress=False)
"""


def test_training_imports_no_optional_library_and_not_the_compiler_of_torch():
    _, packages = imported("-c", TRAINING)
    assert "torch" in packages and "personafl" in packages
    assert not packages & (OPTIONAL - {"pandas"} | {"sympy"})  # pyarrow asks whether pandas is there


def test_the_package_alone_imports_nothing_heavy():
    _, packages = imported("-c", "import personafl")
    assert not packages & HEAVY


def test_watching_imports_nothing_that_trains(tmp_path):
    folder = RunFolder(tmp_path / "run")
    resolved = {"clients": 5, "fingerprint": "0", "loss": "mse", "parameters": 3}
    folder.create({"seed": 0, "rounds": 1, "data": {}, "algorithm": {"name": "fedavg"}, "resolved": resolved})
    traffic = {"bytes_up": 0, "bytes_down": 0}
    folder.append("rounds.jsonl", {"round": 1, "active": 5, "failed": [], "personal_accuracy": 0.5, **traffic})
    make_folder(folder.models)
    write_text(folder.models / "elsewhere.json", "{}")
    shown, packages = imported("-m", "personafl", "watch", str(folder.path))
    assert shown.splitlines()[-1].endswith("run: finished") and "accuracy 0.5000" in shown
    assert not packages & {"torch", "scipy", "sklearn", "matplotlib"}
