"""Print the lowest versions that pyproject.toml allows, as constraints for pip: lowest.py torch==VERSION."""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Flower and Ray ask for newer versions of what others need, and Flower is bound to one version anyway.
EXTRAS = ("mlflow", "onnx", "privacy", "tensorboard")


def lowest(requirements: list[str]) -> dict[str, str]:
    """The floor of each requirement that has one.

    >>> lowest(["numpy>=2.0,<3", "ray"])
    {'numpy': '2.0'}
    """
    floors = {}
    for line in requirements:
        requirement = Requirement(line)
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                floors[canonicalize_name(requirement.name)] = specifier.version
    return floors


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    for name, version in sorted((lowest(wanted) | {"torch": sys.argv[1].partition("==")[2]}).items()):
        print(f"{name}=={version}")
