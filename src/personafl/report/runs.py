"""The runs that a report is about: found, named, and sorted by method and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personafl.errors import RunError
from personafl.report.fits import row_of
from personafl.runs.run import Run
from personafl.storage.reading import read_json
from personafl.storage.schemas import Comparison, Fit
from personafl.study.judgement import by_method, open_runs

SUMMARY, FIT = "comparison.json", "fit.json"


@dataclass(frozen=True)
class Reported:
    """Runs by method and seed, and what is known of how they came about."""

    methods: dict[str, dict[int, Run]]
    """Runs that were evaluated at least once."""
    title: str
    waiting: list[Run] = field(default_factory=list)
    """Runs without an evaluation so far."""
    comparison: dict[str, Any] = field(default_factory=dict)
    """comparison.json, where the folder of a comparison has one."""
    others: list[str] = field(default_factory=list)
    """Unfinished runs in a comparison's folder that its comparison.json does not list: it goes on, or was extended."""

    @property
    def runs(self) -> list[tuple[str, int, Run]]:
        """All evaluated runs, as (method, seed, run)."""
        return [(method, seed, run) for method, runs in self.methods.items() for seed, run in runs.items()]


def find_runs(paths: Sequence[Path]) -> Reported:
    """Open run folders, or the folder of a comparison, which says how its methods are called.

    Parameters
    ----------
    paths
        Run folders. A folder of run folders stands for all of them, or for those that its comparison.json lists.
    """
    if not paths:
        raise RunError("there is no run to report: name a run folder, or the folder of a comparison")
    title = paths[0].resolve().name if len(paths) == 1 else ", ".join(p.resolve().name for p in paths[:3])
    title += f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    summaries = {path: _summary(path) for path in paths}
    if len(paths) == 1 and (fitted := fit_of(paths[0])):
        return _of_fit(paths[0], fitted, title)
    if len(paths) == 1 and (comparison := summaries[paths[0]]):
        listed = _listed(paths[0], comparison)
        methods = {m: {seed: Run(folder) for seed, folder in runs.items()} for m, runs in listed.items()}
        opened = [run for runs in methods.values() for run in runs.values()]
        unlisted = sorted({file.parent for file in paths[0].glob("*/run.toml")} - {run.path for run in opened})
        others = [folder.name for folder in unlisted if not (folder / "models").exists()]
    else:
        comparison, others, opened = {}, [], []
        for path, summary in summaries.items():
            inside = [p for runs in _listed(path, summary).values() for p in runs.values()]
            opened += [Run(p) for p in inside] if inside else open_runs([path])
        methods = by_method(opened)
    waiting = [run for run in opened if not _evaluated(run)]
    left = {run.path for run in waiting}
    methods = {m: {seed: run for seed, run in runs.items() if run.path not in left} for m, runs in methods.items()}
    return Reported({m: runs for m, runs in methods.items() if runs}, title, waiting, comparison, others)


def fit_of(path: Path) -> dict[str, Any]:
    """fit.json of the folder of a fit; nothing for other folders."""
    file = path / FIT
    if not file.is_file() or not (path / "run.toml").is_file():
        return {}
    return dict(read_json(file, Fit))


def _of_fit(path: Path, fitted: dict[str, Any], title: str) -> Reported:
    """A fit beside its finalists; one model for all is that of fedavg's run, whose row of the global model says it."""
    fit = Run(path)
    seed = int(fit.manifest["seed"])
    methods = {"fit": {seed: fit}}
    for model in fitted["finalists"]:
        name = row_of(str(model["label"]))
        methods.setdefault(name, {seed: Run(path / "candidates" / model["folder"])})
    comparison = {"added": [], "failures": [], "searches": [], "fit": fitted}
    return Reported(methods, title, comparison=comparison)


def _summary(path: Path) -> dict[str, Any]:
    file = path / SUMMARY
    if (path / "run.toml").is_file() or not file.is_file():
        return {}
    return {"searches": [], "failures": [], "added": [], **read_json(file, Comparison)}


def _listed(path: Path, summary: dict[str, Any]) -> dict[str, dict[int, Path]]:
    """The run folders of a comparison.json; they lie beside it, wherever it says they do."""
    out: dict[str, dict[int, Path]] = {}
    for method, runs in summary.get("runs", {}).items():
        for seed, name in runs.items():
            out.setdefault(str(method), {})[int(seed)] = path / name
    return out


def _evaluated(run: Run) -> bool:
    """Whether there is a line in rounds.jsonl and an evaluation; a round's evaluation is written before its line."""
    return bool(run.rounds()) and (run.folder.clients_file.exists() or run.folder.unmerged)
