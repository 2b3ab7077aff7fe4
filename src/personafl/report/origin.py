"""What was run, and how to run it again: facts, a config and a command from the runs' manifests."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import tomli_w

from personafl.report.runs import Reported
from personafl.runs.run import Run
from personafl.settings import Schedule
from personafl.study.values import floats

_OF_A_METHOD = ("algorithm", "rounds", "activity", "local", "model", "privacy", "robust")
"""What a [methods] table may hold."""
_OF_SCHEDULE = [f.name for f in fields(Schedule) if f.name not in _OF_A_METHOD]
_SHARED = ("data", "partition", "splits", "splitting", *_OF_SCHEDULE)


def facts(found: Reported) -> list[dict[str, str]]:
    """Rows of "what was run"; where runs differ, all values."""
    runs = [run for _, _, run in found.runs] + found.waiting
    rows = [
        ("data", [_table(run.manifest.get("data")) for run in runs]),
        ("partition", [_table(run.manifest.get("partition")) for run in runs]),
        ("splits", [_splits(run.manifest.get("splits")) for run in runs]),
        ("splitting", [_text(run.manifest.get("splitting")) for run in runs]),
        ("clients", [_resolved(run, "clients") for run in runs]),
        ("classes", [_resolved(run, "classes") for run in runs]),
        ("rounds", [_text(run.manifest.get("rounds")) for run in runs]),
        ("activity", [_text(run.manifest.get("activity")) for run in runs]),
        ("seeds", [_seeds(found)]),
        ("model", [_table(run.manifest.get("model")) for run in runs]),
        ("parameters", [_resolved(run, "parameters") for run in runs]),
        ("task", [_table(run.manifest["resolved"].get("task")) for run in runs]),
        ("loss", [_resolved(run, "loss") for run in runs]),
        ("local training", [_table(run.manifest.get("local")) for run in runs]),
        ("privacy", _privacy(found)),
        ("secure aggregation", [_table(run.manifest.get("secure")) for run in runs]),
        ("robust aggregation", [_table(run.manifest.get("robust")) for run in runs]),
        ("engine", [_engine(run) for run in runs]),
        ("versions", [_table(run.manifest.get("versions")) for run in runs]),
        ("data fingerprint", [f"{_resolved(run, 'fingerprint')} (seed {run.manifest['seed']})" for run in runs]),
        ("started", [_span([_text(run.manifest.get("created")) for run in runs])]),
    ]
    return [{"name": name, "value": "; ".join(dict.fromkeys(v for v in values if v))} for name, values in rows
            if any(values)]  # fmt: skip


def settings(run: Run) -> dict[str, str]:
    """The algorithm's parameters as text."""
    return {key: _text(value) for key, value in run.manifest["algorithm"].items() if key != "name"}


def again(found: Reported) -> dict[str, str] | None:
    """A config and the command that runs the same again; None where no single config says it all.

    The config has every value of the manifests written out, so a search is not made again: what it chose is there.
    """
    runs = [run for _, _, run in found.runs]
    if not runs:
        return None
    manifests = [run.manifest for run in runs]
    first = manifests[0]
    if any(m.get(key) != first.get(key) for m in manifests for key in _SHARED):
        return None
    if any("name" not in m.get(key, {}) for m in manifests for key in ("data", "model")):
        return None  # data or a model from Python
    if any(str(m["algorithm"].get("class", "")).startswith("__main__") for m in manifests):
        return None  # an algorithm that no config can name
    seeds = [sorted(runs) for runs in found.methods.values()]
    start, count = seeds[0][0], len(seeds[0])
    if any(each != list(range(start, start + count)) for each in seeds):
        return None
    config: dict[str, Any] = {
        "seed": start,
        **{key: first[key] for key in (*_SHARED, *_OF_A_METHOD[1:]) if key in first},
    }
    engine = {(m["resolved"].get("engine"), m["resolved"].get("threads")) for m in manifests}
    if len(engine) == 1 and None not in (only := next(iter(engine))):
        config["engine"] = {"name": only[0], "threads": only[1]}
    if len(runs) == 1:
        return _written({**config, "algorithm": first["algorithm"]}, ["personafl", "run", "config.toml"])
    methods = {m: next(iter(runs.values())).manifest for m, runs in found.methods.items()}
    for key in ("privacy", "robust"):
        if any(m.get(key) != first.get(key) for m in manifests):
            config.pop(key, None)  # a method cannot do without what the config says for all
    config["methods"] = {
        m: {key: own[key] for key in _OF_A_METHOD if key in own and (key == "algorithm" or own[key] != config.get(key))}
        for m, own in methods.items()
    }
    return _written(config, ["personafl", "compare", "config.toml", "--seeds", str(count)])


def _written(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, str]:
    return {"config": tomli_w.dumps(_in_order(_named(config))), "command": shlex.join(words)}


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a run folder as a config has them: a class that is not personafl's own is named as such.

    >>> _named({"algorithm": {"name": "mine", "class": "mypackage.mine:Mine", "lam": 2.0}})
    {'algorithm': {'name': 'mypackage.mine:Mine', 'lam': 2.0}}
    """
    out = {key: _named(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    if "name" in out and "class" in out:
        out["name"] = out.pop("class")
    return out


def _in_order(table: Mapping[str, Any]) -> dict[str, Any]:
    """Values before tables, as people write TOML."""
    return dict(sorted(table.items(), key=lambda item: isinstance(item[1], Mapping)))


def _resolved(run: Run, key: str) -> str:
    value = run.manifest["resolved"].get(key)
    return f"{value:,}" if isinstance(value, int) else _text(value)


def _engine(run: Run) -> str:
    resolved = run.manifest["resolved"]
    words = [_text(resolved.get("engine")), _text(resolved.get("device"))]
    threads = resolved.get("threads")
    words.append(f"{threads} thread{'' if threads == 1 else 's'}" if threads else "")
    return ", ".join(word for word in words if word)


def _privacy(found: Reported) -> list[str]:
    """What clients did to their answers, and what that guarantees so far, for each method that has it."""
    made = []
    for method, runs in found.methods.items():
        private = [run for run in runs.values() if "privacy" in run.manifest]
        if not private:
            continue
        settings = private[0].manifest["privacy"]
        spent = np.concatenate([floats(run.clients(), "epsilon") for run in private])
        spent = spent[~np.isnan(spent)]  # who was not heard did not tell
        by_sample = settings.get("unit") == "sample"
        text = f"clip = {settings['clip']}, noise = {settings['noise']}"
        text += " in every local step" if by_sample else " at the server" if "noise_at" in settings else ""
        if not settings["noise"]:
            text += ": no guarantee (clipping only)"
        elif len(spent):
            most, median = spent.max(), np.median(spent)
            text += ": for a training sample, " if by_sample else ": "
            text += f"ε = {most:.3g} at most, {median:.3g} in the median client, at δ = {settings['delta']}"
            if any(run.manifest["resolved"].get("engine") != "flower" for run in private):
                text += ", if the noise were secret: in a simulation it follows from the seed"
        made.append(f"{method}: {text}" if len(found.methods) > 1 else text)
    return made


def _table(value: Any) -> str:
    if not isinstance(value, Mapping):
        return _text(value)
    shown = [key for key in value if key != "name" and (key != "class" or "name" in value)]
    rest = ", ".join(f"{key} = {_text(value[key])}" for key in shown)
    name = _text(value.get("name", value.get("class")))
    return f"{name} ({rest})" if name and rest else name or rest


def _splits(value: Any) -> str:
    return " / ".join(_text(v) for v in value) + " (train / validation / test)" if isinstance(value, list) else ""


def _seeds(found: Reported) -> str:
    return ", ".join(map(str, sorted({run.manifest["seed"] for _, _, run in found.runs})))


def _span(values: Sequence[str]) -> str:
    known = sorted(v for v in values if v)
    return "" if not known else known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "[" + ", ".join(_text(v) for v in value) + "]"
    return str(value)
