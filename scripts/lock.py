"""Print exact pins of what personafl needs, as installed in the environment that runs this.

    python scripts/lock.py [EXTRA ...] > requirements.lock
    python scripts/lock.py --alone EXTRA > requirements-EXTRA.lock

Starts from pyproject.toml (its dependencies, the build backend and the named extras; `--alone`: the extras only) and
follows installed packages' own requirements, so what else lies in the environment stays out of the lock. torch is
pinned without its build label (2.13.0, not 2.13.0+cpu) and without the accelerator packages that only some builds ask
for: one lock serves every build.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ACCELERATOR = re.compile(r"(nvidia|cuda)-.*|triton|pytorch-triton.*")


def pins(roots: list[str]) -> dict[str, str]:
    """The installed version of every package that `roots` need, by name, following their requirements."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(root), "") for root in roots]
    while todo:
        requirement, parent_extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": parent_extra}):
            continue
        name = canonicalize_name(requirement.name)
        if ACCELERATOR.fullmatch(name):
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"lock: {requirement} is needed but not installed") from None
        if not requirement.specifier.contains(installed.version, prereleases=True):
            raise SystemExit(f"lock: {requirement} is needed but {installed.version} is installed")
        found[name] = installed.version.partition("+")[0]
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += [(Requirement(line), extra) for line in installed.requires or []]
    return found


def main(extras: list[str], alone: bool) -> None:
    """Write the lock for the package, its build backend and `extras` to standard output; `alone`: of `extras` only."""
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
    project = pyproject["project"]
    roots = [] if alone else [*project["dependencies"], *pyproject["build-system"]["requires"]]
    for extra in extras:
        roots += project["optional-dependencies"][extra]
    print(f"# What personafl{extras} is tested with. Written by `make lock`; do not edit.".replace("'", ""))
    for name, version in sorted(pins(roots).items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--alone"], "--alone" in sys.argv)
