"""Write exact pins, with hashes, of what personafl needs, as installed in the environment that runs this.

    python scripts/lock.py [EXTRA ...]         writes requirements.lock and requirements-torch.lock
    python scripts/lock.py --alone EXTRA       writes requirements-EXTRA.lock
    python scripts/lock.py --sites EXTRA ...   writes requirements-sites.lock

Starts from pyproject.toml (its dependencies, the build backend and the named extras; `--alone`: that extra only;
`--sites`: without the build backend, what runs at a site of a federation) and follows installed packages' own
requirements, so what else lies in the environment stays out of the lock.

A lock has the SHA-256 of every file that the package index, as pip is configured here, offers of a version
for CPython 3.11 or newer on Linux or macOS, so pip refuses any other content. torch has a file of its own,
requirements-torch.lock, without hashes: its builds (CPU, CUDA) are different files of one version, which come from
different places. It is pinned without its build label (2.13.0, not 2.13.0+cpu), and what only some builds ask for
(accelerator packages) is in neither file: one lock serves every build.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).parent.parent
ACCELERATOR = re.compile(r"(nvidia|cuda)-.*|triton|pytorch-triton.*")
OLDEST = (3, 11)
# Where else personafl runs: a package that only one of these needs must be in the lock, or pip refuses it there.
ELSEWHERE = [
    {"python_version": python, "python_full_version": f"{python}.0", "os_name": "posix", **machine}
    for python in ("3.11", "3.12", "3.13")
    for machine in (
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
        {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    )
]


def pins(roots: list[str]) -> dict[str, str]:
    """The installed version of every package that `roots` need, here or elsewhere, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(root), "") for root in roots]
    while todo:
        requirement, parent_extra = todo.pop()
        marker = requirement.marker
        if marker and not any(marker.evaluate({**place, "extra": parent_extra}) for place in ELSEWHERE):
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


class Index:
    """The package index, asked as pip asks it: its addresses, certificates and passwords are pip's own business."""

    def __init__(self) -> None:
        command: Any = create_command("download")
        options, _ = command.parse_args(["--quiet"])
        self.enter = command.main_context()
        self.make = lambda: command._build_package_finder(options, command.get_default_session(options))

    def hashes(self, name: str, version: str, links: list[Link]) -> list[str]:
        """The SHA-256 of every file of a version that a supported machine may install."""
        found = sorted({link.hash for link in links if link.hash_name == "sha256" and fits(link.filename, version)})
        if not found:
            raise SystemExit(f"lock: the package index has no file with a SHA-256 for {name}=={version}")
        return [str(value) for value in found]

    def links(self, names: list[str]) -> Iterator[tuple[str, list[Link]]]:
        with self.enter:
            collector = self.make()._link_collector
            for name in names:
                pages = [collector.fetch_response(Link(url)) for url in self._urls(collector, name)]
                yield name, [link for page in pages if page is not None for link in parse_links(page)]

    @staticmethod
    def _urls(collector: Any, name: str) -> list[str]:
        """The pages of a package; of indexes on this machine, those that exist."""
        urls: list[str] = collector.search_scope.get_index_urls_locations(name)
        return [url for url in urls if not url.startswith("file:") or Path(Link(url).file_path).exists()]


def fits(filename: str, version: str) -> bool:
    """Whether a file is of this version, and a source archive or a wheel for a supported machine.

    >>> fits("numpy-2.0.0-cp311-cp311-macosx_14_0_arm64.whl", "2.0.0")
    True
    >>> fits("numpy-2.0.0-cp39-cp39-win_amd64.whl", "2.0.0"), fits("numpy-2.0.1.tar.gz", "2.0.0")
    (False, False)
    """
    try:
        if not filename.endswith(".whl"):
            return parse_sdist_filename(filename)[1] == Version(version)
        _, of_file, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return False
    return of_file == Version(version) and any(map(_supported, tags))


def _supported(tag: Tag) -> bool:
    if tag.platform.startswith(("win", "ios", "android", "pyodide", "emscripten")):
        return False
    python = re.fullmatch(r"(py|cp)3(\d*)", tag.interpreter)
    if python is None:
        return False
    minor = int(python[2] or 0)
    return tag.abi in ("none", "abi3") or (3, minor) >= OLDEST


def main(extras: list[str], kind: str = "") -> None:
    """Write a lock of `extras` and, but for the kind `--alone`, of what the package needs."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = pyproject["project"]
    roots = [] if kind == "--alone" else [*project["dependencies"]]
    roots += [] if kind else pyproject["build-system"]["requires"]
    for extra in extras:
        roots += project["optional-dependencies"][extra]
    found = pins(roots)
    torch = found.pop("torch", None)
    index = Index()
    lines = [f"# What personafl[{', '.join(extras)}] is tested with. Written by `make lock`; do not edit."]
    for name, links in index.links(sorted(found)):
        hashes = index.hashes(name, found[name], links)
        lines.append(" \\\n".join([f"{name}=={found[name]}", *(f"    --hash=sha256:{value}" for value in hashes)]))
    names = {"": "requirements.lock", "--alone": f"requirements-{extras[0]}.lock", "--sites": "requirements-sites.lock"}
    write(names[kind], "\n".join(lines) + "\n")
    if not kind:
        note = "# Without hashes, because builds differ. Written by `make lock`."
        write("requirements-torch.lock", f"{note}\ntorch=={torch}\n")


def write(name: str, text: str) -> None:
    """Whole or not at all."""
    draft = ROOT / f"{name}.new"
    draft.write_text(text, "utf-8")
    draft.rename(ROOT / name)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if not word.startswith("-")], *(w for w in sys.argv[1:] if w.startswith("-")))
