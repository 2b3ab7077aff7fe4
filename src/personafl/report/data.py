"""Everything that a report shows, as one JSON value; the page and the figures draw what is here.

Numbers of the judgement are those of `study.judge`, to the last digit; what is only drawn is rounded to five digits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personafl.errors import PersonaflError
from personafl.metrics.measures import LOSS, Measure
from personafl.report.clients import Federations, client_values
from personafl.report.fits import fit_data
from personafl.report.methods import collaboration, detection, distillation, uncertainty
from personafl.report.numbers import rounded
from personafl.report.origin import again, facts, settings
from personafl.report.runs import Reported, find_runs
from personafl.runs.run import Run
from personafl.study.audit import read_audit
from personafl.study.columns import NO_CONTEST
from personafl.study.judgement import Judgement, judge, rows_of
from personafl.study.tables import caption, json_values
from personafl.study.values import common_measures
from personafl.study.words import TEST, against_the_majority, answer, work
from personafl.version import __version__

MOST_POINTS = 400
"""Rounds that a learning curve keeps."""
TROUBLE = (PersonaflError, OSError)
"""What reading a folder may raise while a run is writing there."""


def report_data(paths: Sequence[Path]) -> dict[str, Any]:
    """Read runs and make what a report shows of them. A run in the middle of writing is read again.

    Parameters
    ----------
    paths
        Run folders, or the folder of a comparison.
    """
    for _ in range(3):
        try:
            return _made(find_runs(paths))
        except TROUBLE:
            time.sleep(0.3)
    return _made(find_runs(paths))


def _made(found: Reported) -> dict[str, Any]:
    federations = Federations()
    runs = []
    for method, seed, run in found.runs:
        where = federations.add(run)
        runs.append({"method": list(found.methods).index(method), "seed": seed, "federation": where} | _state(run))
    judgement = judge(found.methods) if found.methods else None
    first = LOSS if judgement is None else judgement.measure
    shown = (*common_measures([run for _, _, run in found.runs]), LOSS) if found.runs else (LOSS,)
    federations.thin(len(runs))
    return {
        "title": found.title,
        "version": __version__,
        "facts": facts(found),
        "again": again(found),
        "notes": _notes(found),
        "measure": _described(first),
        "measures": {measure.name: _described(measure) for measure in shown},
        "methods": [
            {"name": m, "label": rows_of(m, list(r.values()))[-1].name,
             "algorithm": _first(r).manifest["algorithm"]["name"], "seeds": list(r),
             "added": m in found.comparison.get("added", ()), "settings": settings(_first(r))}
            for m, r in found.methods.items()
        ],
        "runs": runs,
        "judgement": _judged(judgement, tuple(found.comparison.get("added", ()))) if judgement else None,
        "fit": fit_data(
            found.comparison.get("fit", {}), found.runs[0][2], first, list(found.methods), federations.kept(0)
        ) if runs else None,
        "searches": found.comparison.get("searches", []),
        "curves": [
            c for number, mine in enumerate(found.methods.values()) for c in curves(number, [*mine.values()], shown)
        ],
        "federations": federations.tables(),
        "values": [
            client_values(run, federations.kept(mine["federation"]), first)
            for mine, (_, _, run) in zip(runs, found.runs, strict=True)
        ],
        "uncertainty": _each(found, uncertainty),
        "collaboration": [
            made | {"run": number, "federation": runs[number]["federation"]}
            for number, (_, _, run) in enumerate(found.runs)
            if (made := collaboration(run, federations.order(runs[number]["federation"])))
        ],
        "distillation": _each(found, distillation),
        "detection": _each(found, detection),
        "audits": [
            made | {"run": number} for number, (_, _, run) in enumerate(found.runs) if (made := read_audit(run))
        ],
    }  # fmt: skip


def _described(measure: Measure) -> dict[str, Any]:
    """What clients are compared by, for the page: `share` says that it is between 0 and 1."""
    return {
        "key": measure.name, "title": f"test {measure.label}", "label": measure.label, "unit": measure.unit,
        "scale": measure.scale, "digits": max(measure.digits - 1, 1) if measure.unit == "%" else measure.digits,
        "better": measure.better or 1, "share": bool((measure.low, measure.high) == (0, 1)),
    }  # fmt: skip


def curves(method: int, runs: Sequence[Run], measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Measures of the personalized and the global model over rounds: mean, lowest and highest seed.

    They are weighted by samples, as in rounds.jsonl. A round counts with the seeds that have been evaluated there.
    """
    made = []
    for who in ("personal", "global"):
        for key in (measure.name for measure in measures):
            by_round: dict[int, list[float]] = {}
            for run in runs:
                for record in run.rounds():
                    value = record.get(f"{who}_{key}")
                    if value is not None and np.isfinite(value):
                        by_round.setdefault(int(record["round"]), []).append(float(value))
            rounds = sorted(by_round)
            if len(rounds) > MOST_POINTS:
                rounds = [rounds[i] for i in np.linspace(0, len(rounds) - 1, MOST_POINTS).round().astype(int)]
            if rounds:
                values = [by_round[r] for r in rounds]
                made.append(
                    {"method": method, "who": who, "measure": key, "rounds": rounds,
                     "mean": rounded([np.mean(v) for v in values]), "low": rounded([min(v) for v in values]),
                     "high": rounded([max(v) for v in values]), "seeds": [len(v) for v in values]}
                )  # fmt: skip
    return made


def _judged(judgement: Judgement, added: tuple[str, ...]) -> dict[str, Any]:
    columns = [
        {"key": c.key, "title": c.title, "about": c.about, "better": c.better, "scale": c.scale,
         "digits": int(c.form.strip(",.f")), "contest": c.key not in NO_CONTEST}
        for c in judgement.columns
    ]  # fmt: skip
    methods = list(dict.fromkeys(row.method for row in judgement.rows))
    rows = [{"method": methods.index(row.method), "model": row.model, "label": row.name} for row in judgement.rows]
    words = {"work": work(judgement), "result": answer(judgement), "majority": against_the_majority(judgement)}
    return {
        **json_values(judgement), **words, "columns": columns, "rows": rows, "test": TEST,
        "best_label": judgement.name(judgement.best), "caption": caption(judgement, added),
    }  # fmt: skip


def _state(run: Run) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "folder": run.path.name,
        "complete": run.complete,
        "round": int(run.rounds()[-1]["round"]),
        "rounds": manifest.get("rounds"),
    }


def _notes(found: Reported) -> list[str]:
    work = found.comparison.get("equal_work")
    notes = [str(work["sentence"])] if isinstance(work, Mapping) and "sentence" in work else []
    notes += found.comparison.get("fit", {}).get("notes", [])
    for method, seed, run in found.runs:
        if not run.complete:
            state = _state(run)
            evaluated = int(np.max(_column(run, "round")))
            notes.append(
                f"{method}, seed {seed}, is not finished: round {state['round']} of {state['rounds']}. Its numbers are "
                f"those of the evaluation after round {evaluated}."
            )
    for seed, few, many in sorted({_evaluated(seed, run) for _, seed, run in found.runs}):
        if few < many:
            notes.append(f"Seed {seed}: {few:,} of {many:,} clients were evaluated; everything here is about these.")
    notes += [f"{run.path.name} has no evaluation yet and is left out." for run in found.waiting]
    notes += [f"{f['method']} with seed {f['seed']} failed: {f['why']}" for f in found.comparison.get("failures", [])]
    if found.others:
        notes.append(f"Not finished, and not in comparison.json so far: {', '.join(found.others)}.")
    return notes


def _evaluated(seed: int, run: Run) -> tuple[int, int, int]:
    return seed, len(run.clients()), int(run.manifest["resolved"].get("clients", 0))


def _column(run: Run, name: str) -> NDArray[Any]:
    return np.asarray(run.folder.clients().column(name).to_numpy(zero_copy_only=False))


def _each(found: Reported, make: Any) -> list[dict[str, Any]]:
    """What `make` says of each method, for those of which it has something to say."""
    said = [(number, make(list(runs.values()))) for number, runs in enumerate(found.methods.values())]
    return [{"method": number, **value} for number, value in said if value]


def _first(runs: Mapping[int, Run]) -> Run:
    return next(iter(runs.values()))
