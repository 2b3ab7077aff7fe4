"""What a fit can go on from: what is fitted, and a line for every training that ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from personafl.errors import RunError
from personafl.files import make_folder, private_opener, write_text
from personafl.fitting.candidates import Candidate, Outcome, Portfolio
from personafl.fitting.search import Search
from personafl.storage.folder import RunFolder
from personafl.storage.reading import content, read_json
from personafl.training.job import Job

log = logging.getLogger("personafl")

TRIALS_FILE, SETTINGS_FILE = "trials.jsonl", "search.json"


def check_not_begun(folder: Path) -> None:
    """Refuse a folder that holds a fit, finished or not."""
    if (folder / SETTINGS_FILE).exists():
        raise RunError(
            f"{folder} already holds a fit: go on with resume=True (--resume on the command line), or name another "
            "folder with out (--out)"
        )


def check_same(folder: Path, job: Job, portfolio: Portfolio) -> None:
    """Note what is fitted, or refuse to go on with something else."""
    now = {
        "fingerprint": job.federation.fingerprint,
        "parameters": job.task.size,
        "model": job.tables.get("model"),
        "loss": job.task.kind.loss_name,
        "measure": job.task.kind.primary.name,
        "rounds": job.schedule.rounds,
        "activity": job.schedule.activity,
        "seed": job.seed,
        "local": job.local.table(),
        "methods": {name: asdict(algorithm) for name, algorithm in portfolio.algorithms.items()},
    }
    now = json.loads(json.dumps(now, default=str))
    make_folder(folder)
    file = folder / SETTINGS_FILE
    if not file.exists():
        write_text(file, json.dumps(now, indent=1) + "\n")
        return
    before = read_json(file, dict[str, Any])
    for key in ("measure", "model"):  # which earlier versions did not note
        before.setdefault(key, now[key])
    for key, value in now.items():
        if before.get(key) != value:
            raise RunError(
                f"{folder} holds another fit: its {key} differs; go on with the same data and settings, or name "
                "another folder with out (--out)"
            )


def append_trial(folder: Path, candidate: Candidate, outcome: Outcome) -> None:
    """Note a training that ended."""
    line = {
        "number": candidate.number, "method": candidate.method, "settings": candidate.settings,
        **{key: None if value != value else value for key, value in vars(outcome).items()},  # NaN is none in JSON
    }  # fmt: skip
    with open(folder / TRIALS_FILE, "a", encoding="utf-8", opener=private_opener) as file:
        file.write(json.dumps(line) + "\n")


def append_forgotten(folder: Path, names: Sequence[str]) -> None:
    """Note trainings whose folders go: their scores count still."""
    with open(folder / TRIALS_FILE, "a", encoding="utf-8", opener=private_opener) as file:
        file.write(json.dumps({"forgotten": [*names]}) + "\n")


def read_trials(folder: Path, search: Search) -> float:
    """Put the candidates of earlier sessions into a search; the seconds that these took."""
    spent = 0.0
    known: dict[int, Candidate] = {}
    forgotten: set[str] = set()
    file = folder / TRIALS_FILE
    for number, line in enumerate(content(file).splitlines() if file.exists() else [], 1):
        try:
            found = json.loads(line)
            if "forgotten" in found:
                forgotten |= {str(name) for name in found["forgotten"]}
                continue
            score, common, seconds = (_number(found[key]) for key in ("score", "global_score", "seconds"))
            spent = float(found["at"])
            outcome = Outcome(
                int(found["rounds"]), score, common, seconds, str(found["folder"]), str(found["why"]), spent
            )
            candidate = known.setdefault(
                int(found["number"]), Candidate(int(found["number"]), str(found["method"]), dict(found["settings"]))
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ):  # the line in flight when the process was killed
            log.warning("%s, line %d cannot be read and is left out", file, number)
            continue
        candidate.outcomes[outcome.rounds] = outcome
    for number in sorted(known):
        outcomes = known[number].outcomes
        for rounds, outcome in [*outcomes.items()]:
            if outcome.folder in forgotten:
                outcomes[rounds] = replace(outcome, folder="")
            elif outcome.folder and not RunFolder(folder / "candidates" / outcome.folder).exists:
                del outcomes[rounds]  # somebody removed it: it is trained again
        search.put(known[number])
    return spent


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)
