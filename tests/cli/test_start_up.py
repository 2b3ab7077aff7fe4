"""Facts about starting: what a command or an import does not need is not imported."""

import os
import re
import subprocess
import sys

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


def test_the_usual_names_import_no_optional_library():
    _, packages = imported("-c", "import torch, personafl as pf; pf.train; pf.Federation; pf.Ditto")
    assert "torch" in packages and "personafl" in packages
    assert not packages & OPTIONAL


def test_the_package_alone_imports_nothing_heavy():
    _, packages = imported("-c", "import personafl")
    assert not packages & HEAVY


def test_training_does_not_import_the_compiler_of_torch():
    code = (
        "import torch, personafl as pf; import numpy as np; from torch import nn; "
        "fed = pf.Federation.from_clients({'a': (np.ones((4, 3), 'float32'), [0, 1, 0, 1])}); "
        "pf.train(fed, nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), rounds=1, engine='loop', progress=False)"
    )
    _, modules = imported("-c", code)
    assert "personafl" in modules and not modules & {"sympy", "scipy", "sklearn"}
