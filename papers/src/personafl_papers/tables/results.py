"""Published beside measured: what `personafl reproduce` finds out, as one JSON value.

`found["numbers"]` is a list of rows, `found["claims"]` has a verdict for each claim. `docs/reproduction.md` is made of
nothing else.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from personafl.study.processes import cores
from personafl.version import __version__
from personafl_papers.tables.claims import VERDICTS, Number, Numbers
from personafl_papers.tables.table import Found, Measured, Table

PROTOCOL = 2
"""Of the results: 1 searched short grids with short runs, 2 searches until it is inside, with runs of full length."""

MOST_VALUES = 20
"""Numbers of more values, such as the repeats of a simulation, are kept without them."""


def results(name: str, table: Table, found: Found, measured: Measured) -> dict[str, Any]:
    """Everything about a table that was run."""
    runs = [run for part in found.runs.values() for method in part.values() for run in method.values()]
    different = {run.path: run for run in runs}
    value = {
        "table": name,
        "about": table.about,
        "paper": table.paper,
        "command": command(name, found.quick, found.seed),
        "protocol": PROTOCOL,
        "quick": found.quick,
        "seeds": sorted({int(run.manifest["seed"]) for run in runs}) or [found.seed],
        "runs": len(different),
        "training_seconds": round(sum(run.seconds for run in different.values()), 1),
        "cores": cores(),
        "versions": {
            "personafl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "cut": table.cut,
        "parts": {
            key: {"title": part.title, "place": part.place, "other_data": part.other_data, "spread": part.spread}
            for key, part in table.parts.items()
        },
        "numbers": rows(table, measured.numbers, by_seed=not found.failures),
        "searches": _searches(found),
        "failures": [dict(zip(("part", "method", "seed", "why"), f, strict=True)) for f in found.failures],
    }
    return judged(value, table)


def judged(value: dict[str, Any], table: Table) -> dict[str, Any]:
    """The same with the table's claims decided by the numbers that it holds, and what the table says of itself."""
    numbers = numbers_of(value["numbers"])
    claims = []
    for claim in table.claims:
        finding = claim.decide(numbers)
        claims.append(
            {"claim": claim.text, "place": claim.place, "should_hold": claim.should_hold, **asdict(finding)}
        )  # fmt: skip
    notes = [{key: part for key, part in asdict(note).items() if part} for note in table.notes]
    return {**value, "cut": table.cut, "claims": claims, "notes": notes}


def unexplained(value: Mapping[str, Any]) -> list[str]:
    """The claims that do not hold and of which no note says which experiment shows why."""
    known = tuple(start for note in value["notes"] for start in note.get("explains", ()))
    failed = [one for one in value["claims"] if one["should_hold"] and one["verdict"] == "does not hold"]
    return [one["claim"] for one in failed if not one["claim"].startswith(known)]


def rows(table: Table, numbers: Numbers, by_seed: bool = True) -> list[dict[str, Any]]:
    """A row for each number: published, measured, difference. What is published and not measured is there too.

    Values are kept where the first of each is of the first seed, the second of the second, …: not `by_seed` where runs
    have failed. Claims pair them by place.
    """
    out = []
    for part, described in table.parts.items():
        measured: Mapping[str, Mapping[str, Number]] = numbers.get(part, {})
        for row in dict.fromkeys((*described.published, *measured)):
            for column in dict.fromkeys((*described.published.get(row, {}), *measured.get(row, {}))):
                given = described.published.get(row, {}).get(column)
                published, spread = given if isinstance(given, tuple) else (given, None)
                ours = measured.get(row, {}).get(column)
                known = ours is not None and published is not None and not described.other_data
                kept = by_seed and ours is not None and len(ours.values) <= MOST_VALUES
                out.append(
                    {
                        "part": part, "row": row, "column": column, "published": published, "spread": spread,
                        "mean": _finite(ours.mean) if ours else None,
                        "standard_error": _finite(ours.error) if ours else None,
                        "count": ours.count if ours else 0,
                        "values": list(ours.values) if ours and kept else [],
                        "difference": _finite(ours.mean - published) if known else None,  # type: ignore[union-attr,operator]
                    }
                )  # fmt: skip
    return out


def numbers_of(listed: list[dict[str, Any]]) -> Numbers:
    """The measured numbers of such rows."""
    out: dict[str, dict[str, dict[str, Number]]] = {}
    for entry in listed:
        if entry["count"]:
            mean, error = (math.nan if entry[k] is None else entry[k] for k in ("mean", "standard_error"))
            made = Number(mean, error, entry["count"], tuple(entry["values"]))
            out.setdefault(entry["part"], {}).setdefault(entry["row"], {})[entry["column"]] = made
    return out


def tally(claims: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many of these claims hold, do not hold, …; verdicts that none has are left out."""
    verdicts = [claim["verdict"] for claim in claims]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}


def command(name: str, quick: bool, seed: int) -> str:
    """The command that makes these results."""
    return f"personafl reproduce {name}" + (" --quick" if quick else "") + (f" --seed {seed}" if seed else "")


def _searches(found: Found) -> list[dict[str, Any]]:
    return [
        {
            "part": part,
            "method": search.method,
            "measure": search.measure,
            "chosen": search.chosen,
            "ends": search.ends,
            "limits": search.limits,
            "budget": search.budget,
            "trials": [{"settings": t.settings, "score": _finite(t.score)} for t in search.trials],
        }
        for part, searches in found.searches.items()
        for search in searches.values()
    ]


def _finite(value: float) -> float | None:
    return float(f"{value:.8g}") if math.isfinite(value) else None
