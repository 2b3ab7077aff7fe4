"""What a release says of itself: one version everywhere, a changelog in order, a lock that pip can hold others to."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import personafl

ROOT = Path(__file__).parent.parent


def test_the_citation_has_the_version_of_the_package() -> None:
    assert f"\nversion: {personafl.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


@pytest.mark.parametrize("project", ["", "papers", "benchmarks"])
def test_no_other_file_writes_a_version(project: str) -> None:
    pyproject = tomllib.loads((ROOT / project / "pyproject.toml").read_text("utf-8"))
    assert "version" in pyproject["project"]["dynamic"] and "version" not in pyproject["project"]
    assert personafl.__version__ not in (ROOT / project / "pyproject.toml").read_text("utf-8")


def test_each_version_of_the_changelog_has_each_kind_of_change_once() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    for version in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        assert re.match(r"\[Unreleased\]\n|\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d\n", version), version[:40]
        kinds = re.findall(r"^### (.*)$", version, flags=re.MULTILINE)
        assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, kinds
        assert len(kinds) == len(set(kinds)), kinds


@pytest.mark.parametrize(("name", "hole", "fixed"), [("pyarrow", "23.0.0", "23.0.1"), ("ray", "2.54.1", "2.55.0")])
def test_floors_and_locks_exclude_known_holes(name: str, hole: str, fixed: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    asked = [wanted for wanted in map(Requirement, listed) if wanted.name == name]
    assert asked and all(not wanted.specifier.contains(hole) and wanted.specifier.contains(fixed) for wanted in asked)
    (locked,) = re.findall(rf"^{name}==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), flags=re.MULTILINE)
    assert asked[0].specifier.contains(locked)


@pytest.mark.parametrize(
    ("file", "extra"),
    [("requirements.lock", "dev"), ("requirements-docs.lock", "docs"), ("requirements-sites.lock", "flower")],
)
def test_a_lock_pins_every_package_to_hashes_except_torch(file: str, extra: str) -> None:
    lock = (ROOT / file).read_text("utf-8").replace("\\\n", "")
    lines = [line for line in lock.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    pins = {line.partition("==")[0]: line.partition("==")[2].split()[0] for line in lines}
    assert "torch" not in pins
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["optional-dependencies"][extra], *(() if extra == "docs" else project["dependencies"])]
    for requirement in map(Requirement, wanted):
        if requirement.name != "torch":
            assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_a_site_installs_what_was_tested_to_the_hash() -> None:
    tested, sites = (
        set(re.findall(r"^[a-z0-9-]+==(?:.|\\\n)*$", (ROOT / file).read_text("utf-8"), flags=re.MULTILINE))
        for file in ("requirements.lock", "requirements-sites.lock")
    )
    assert len(sites) > 50 and sites < tested
    assert not any(pin.startswith(("pytest==", "ruff==", "ray==")) for pin in sites)


def test_the_packages_that_are_installed_have_all_that_they_ask_for() -> None:
    """`make install` takes what the lock lists and nothing else, so the lock must list everything."""
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
