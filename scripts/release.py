"""Build the three distributions into dist/, check them, and try them where there is no repository.

    python scripts/release.py torch==VERSION

In order: source archives and wheels, each wheel from its archive; twine and check-wheel-contents; a new
environment in a temporary folder with torch and the wheels, where the demo and the Python of the README run;
requirements-sites.lock with the wheel's hash, by which pip finds everything; a list of what was installed there
(SBOM, CycloneDX), which is compared with known holes (pip-audit); SHA256SUMS. Nothing is uploaded.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROJECTS = (ROOT, ROOT / "papers", ROOT / "benchmarks")
# The README leaves open what x and y are.
GIVEN = "from sklearn.datasets import load_digits\nx, y = load_digits(return_X_y=True)\nx_new, y_new = x[:30], y[:30]\n"
QUICK = {'budget="10m"': 'budget="20s"', "rounds=100": "rounds=5", "seeds=5": "seeds=1, rounds=3"}


def main(torch: str) -> None:
    """Make a release, or end with what is wrong."""
    os.environ |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NO_COLOR": "1"}
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()  # the same commit gives the same wheels
    tools = environment(ROOT / "build" / "release-tools", tool_requirements())
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "src/personafl/version.py").read_text("utf-8"))[0]
    built = build(tools, version)
    say("twine check --strict, check-wheel-contents")
    run(tools / "twine", "check", "--strict", *built)
    run(tools / "check-wheel-contents", *(file for file in built if file.suffix == ".whl"))
    with tempfile.TemporaryDirectory(prefix="personafl-release-") as folder:
        new = try_out(Path(folder), torch, [file for file in built if file.suffix == ".whl"])
        lock_of_sites(new, version)
        say("SBOM: dist/sbom.cdx.json")
        run(
            tools / "cyclonedx-py", "environment", "--output-reproducible", "-o", DIST / "sbom.cdx.json", new / "python"
        )
        audit(tools, run(new / "pip", "freeze", "--exclude", "personafl", quiet=True), Path(folder))
    names = sorted(path.name for path in DIST.iterdir())
    sums = [f"{sha256((DIST / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (DIST / "SHA256SUMS").write_text("".join(sums), "utf-8")
    say(f"personafl {version} is in {DIST.name}/: {', '.join(names)}, SHA256SUMS")


def build(tools: Path, version: str) -> list[Path]:
    """The archive and the wheel of each project; leftovers of an earlier build would find their way into a wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    for project in PROJECTS:
        say(f"build: {project.relative_to(ROOT.parent)}")
        shutil.rmtree(project / "build" / "lib", ignore_errors=True)
        run(tools / "python", "-m", "build", "--outdir", DIST, project, quiet=True)
    built = sorted(DIST.iterdir())
    if len(built) != 6 or not all(f"-{version}" in file.name for file in built):
        raise SystemExit(
            f"release: expected three archives and three wheels of {version}, got {[f.name for f in built]}"
        )
    return built


def try_out(folder: Path, torch: str, wheels: list[Path]) -> Path:
    """Install the wheels into a new environment, and use them from a folder that has nothing of the repository."""
    say(f"a new environment: {torch}, then the wheels")
    new = environment(folder / "environment", [torch])
    run(new / "pip", "install", "-qq", *wheels)
    run(new / "pip", "check")
    (work := folder / "work").mkdir()
    say("there: personafl demo")
    run(new / "personafl", "demo", "--rounds", "10", "--seeds", "1", "--out", work / "demo", cwd=work)
    say("there: the commands of papers and benchmarks")
    for command in (["list", "tables"], ["reproduce", "--help"], ["study", "--help"], ["bench", "--help"]):
        run(new / "personafl", *command, cwd=work, quiet=True)
    say("there: the Python of the README")
    (work / "example.py").write_text(GIVEN + example(), "utf-8")
    run(new / "python", "-I", "example.py", cwd=work)
    return new


def lock_of_sites(new: Path, version: str) -> None:
    """What a site installs, with hashes, our wheel's among them; pip, which installs nothing here, finds it all."""
    say("requirements-sites.lock: everything is there, with these hashes")
    (wheel,) = DIST.glob(f"personafl-{version}-*.whl")
    ours = f"personafl=={version} \\\n    --hash=sha256:{sha256(wheel.read_bytes()).hexdigest()}\n"
    lock = DIST / "requirements-sites.lock"
    lock.write_text((ROOT / lock.name).read_text("utf-8") + ours, "utf-8")
    strict = ("--require-hashes", "--no-deps", "--find-links", DIST, "-r", lock)
    run(new / "pip", "install", "-qq", "--dry-run", "--force-reinstall", *strict)


def audit(tools: Path, installed: str, folder: Path) -> None:
    """End where a package that was installed has a known hole; without the index of advisories, say so and go on."""
    pinned = [line for line in installed.splitlines() if "==" in line]  # not our own wheels, of which nobody knows yet
    (listed := folder / "installed.txt").write_text("\n".join(pinned) + "\n", "utf-8")
    command = [
        tools / "pip-audit",
        "--disable-pip",
        "--no-deps",
        "--progress-spinner",
        "off",
        "-f",
        "json",
        "-r",
        listed,
    ]
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, stdin=subprocess.DEVNULL)
    try:
        looked = [package for package in json.loads(done.stdout)["dependencies"] if "skip_reason" not in package]
    except (ValueError, KeyError):
        looked = []
    if not looked:  # a package that it cannot find counts as no hole for pip-audit
        return say("pip-audit: could not look, the index of advisories was not reached")
    holes = [f"{package['name']} {hole['id']}" for package in looked for hole in package.get("vulns", [])]
    if holes:
        raise SystemExit(f"release: known holes: {', '.join(holes)}; raise the floors in pyproject.toml")
    say(f"pip-audit: no known hole in {len(looked)} of {len(pinned)} packages")


def example() -> str:
    """The Python of the README, with less time and fewer rounds."""
    code = "".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S))
    for long, short in QUICK.items():
        if long not in code:
            raise SystemExit(f"release: the Python of README.md has no {long}")
        code = code.replace(long, short)
    return code


def environment(folder: Path, requirements: list[str]) -> Path:
    """The programs of an environment that has these packages; an existing one is brought up to date."""
    if not (folder / "bin" / "pip").exists():
        run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "-qq", *requirements)
    return folder / "bin"


def tool_requirements() -> list[str]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return list(pyproject["project"]["optional-dependencies"]["release"])


def commit_time() -> str:
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "315532800"  # 1980, the first year that a wheel can have


def run(*command: str | Path, cwd: Path = ROOT, quiet: bool = False) -> str:
    """Run a program to its end, or end with what it said. Programs do not see the repository by PYTHONPATH."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, text=True, capture_output=quiet, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        print((done.stdout or "") + (done.stderr or ""), end="", file=sys.stderr)
        raise SystemExit(f"release: {Path(command[0]).name} {' '.join(map(str, command[1:3]))} failed")
    return done.stdout or ""


def say(what: str) -> None:
    print(f"release: {what}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
