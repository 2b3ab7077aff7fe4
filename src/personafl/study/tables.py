"""A judgement as a table: for the terminal, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from personafl.notebook import grid, lines
from personafl.study.columns import NO_CONTEST, Column
from personafl.study.differences import Difference, Row
from personafl.study.judgement import Judgement
from personafl.study.votes import Verdict
from personafl.study.words import dagger, says, sentences

__all__ = ["caption", "csv_text", "json_values", "latex_text", "sentences", "terminal_tables"]

IMPROVEMENT = ("bmta", "pui", "pud", "api", "ji")
COST = ("f1", "ece", "steps", "gradients", "megabytes", "seconds")


def terminal_tables(judgement: Judgement, added: tuple[str, ...] = ()) -> list[Table]:
    """Tables that fit 80 columns; the files have more. Bold: the best mean over seeds."""
    made = []
    for keys in _tables(judgement):
        columns = [c for c in _shown(judgement) if c.key in keys]
        if not columns:
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("method", no_wrap=True)
        for column in columns:
            table.add_column(column.title, justify="right", no_wrap=True)
        for row in judgement.rows:
            table.add_row(Text(_name(row, added)), *(_cell(judgement, row.key, column) for column in columns))
        made.append(table)
    return made


def caption(judgement: Judgement, added: tuple[str, ...] = ()) -> str:
    """On what the numbers were measured, and what the marks mean."""
    return _caption(judgement, _shown(judgement), added)


def csv_text(judgement: Judgement) -> str:
    """One line for each model and metric: mean, standard error, number of seeds, what it is, whose model."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", "metric", "mean", "standard_error", "seeds", "about", "model"])
    for row in judgement.records():
        writer.writerow(
            [
                row["method"],
                row["metric"],
                *(_number(row[k]) for k in ("mean", "standard_error")),
                row["seeds"],
                row["about"],
                row["model"],
            ]
        )
    return file.getvalue()


def latex_text(judgement: Judgement, added: tuple[str, ...] = ()) -> str:
    """A booktabs table for a paper, with what it shows in its caption."""
    keys = (judgement.primary, "worst_10", f"global_{judgement.primary}", "pui", "api", "ji", "loss")
    columns = [c for c in _shown(judgement) if c.key in keys]
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["method", *(_tex(c.title) for c in columns)]) + r" \\",
        r"\midrule",
    ]
    for row in judgement.rows:
        cells = [_latex_cell(judgement, row.key, c) for c in columns]
        lines.append(" & ".join([_tex(_name(row, added)), *cells]) + r" \\")
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_tex(_caption(judgement, columns, added))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def json_values(judgement: Judgement) -> dict[str, Any]:
    """Everything, with null for what is not defined."""
    return {
        "measured": "clients' own test data after the last round, unless a metric says otherwise",
        "primary": judgement.primary,
        "best": judgement.row(judgement.best).method,
        "best_model": judgement.row(judgement.best).model,
        "winner": _named(judgement, judgement.winner),
        "answer": sentences(judgement),
        "metrics": [
            {k: (_finite(v) if k != "values" else [_finite(x) for x in v]) for k, v in row.items()}
            for row in judgement.records()
        ],
        "differences": [_difference(judgement, d) for d in judgement.differences],
        "best_performance": _verdict(judgement, judgement.performance),
        "fairest": _verdict(judgement, judgement.fairness),
    }


def _difference(judgement: Judgement, d: Difference) -> dict[str, Any]:
    row, best = judgement.row(d.method), judgement.row(d.against)
    return {
        "method": row.method, "model": row.model, "against": best.method, "against_model": best.model,
        "mean_difference": _finite(d.mean_difference), "p": _finite(d.p), "p_holm": _finite(d.p_holm),
        "pairs": d.pairs, "ahead": d.ahead, "behind": d.behind, "seeds": d.seeds, "seeds_behind": d.seeds_behind,
        "significant": d.significant, "says": says(judgement, d),
    }  # fmt: skip


def _verdict(judgement: Judgement, verdict: Verdict) -> dict[str, Any]:
    """Only methods stand in the votes, each with its personalized models."""
    return {"methods": [judgement.row(w).method for w in verdict.winners], "why": verdict.why}


def _named(judgement: Judgement, key: str | None) -> dict[str, str] | None:
    if key is None:
        return None
    row = judgement.row(key)
    return {"method": row.method, "model": row.model, "label": row.name}


def _name(row: Row, added: tuple[str, ...]) -> str:
    return f"({row.name})" if row.method in added else row.name


def _tables(judgement: Judgement) -> list[tuple[str, ...]]:
    """Columns that go together: of the measure that ranks, of improvement, of costs, of other metrics."""
    first = [key for key in judgement.spread_keys if key != "sd" and not key.startswith("global_")]
    made = [(*first, "loss"), IMPROVEMENT, COST]
    told = {key for keys in (*made, judgement.spread_keys, NO_CONTEST) for key in keys}
    others = tuple(c.key for c in judgement.columns if c.key not in told)
    return [made[0], others, *made[1:]] if others else made


def _shown(judgement: Judgement) -> list[Column]:
    """The loss is shown where nothing else ranks."""
    return [c for c in judgement.columns if c.key != "loss" or judgement.primary == "loss"]


def notebook_table(judgement: Judgement) -> str:
    """The first columns as HTML, with what the mark says."""
    shown = [column for column in judgement.columns if column.key in judgement.spread_keys[:4]]
    rows = [[row.name, *(_cell(judgement, row.key, column).plain for column in shown)] for row in judgement.rows]
    return grid(["", *(column.title for column in shown)], rows) + lines([dagger(judgement)] if len(rows) > 1 else [])


def _cell(judgement: Judgement, method: str, column: Column) -> Text:
    found = judgement.mean(method, column.key)
    text = column.write(found.mean)
    if column.key in (judgement.primary, "loss") and np.isfinite(found.standard_error):
        text += f" ± {column.write(found.standard_error)}"
    if column.key == judgement.primary and method in _level_with_best(judgement):
        text += "†"
    return Text(text, style="bold" if _is_best(judgement, method, column) else "")


def _latex_cell(judgement: Judgement, method: str, column: Column) -> str:
    found = judgement.mean(method, column.key)
    text = column.write(found.mean).replace("–", "--")
    if _is_best(judgement, method, column):
        text = rf"\textbf{{{text}}}"
    if np.isfinite(found.standard_error) and column.key in (judgement.primary, "worst_10", "loss"):
        text += rf" $\pm$ {column.write(found.standard_error)}"
    if column.key == judgement.primary and method in _level_with_best(judgement):
        text += r"$^\dagger$"
    return text


def _is_best(judgement: Judgement, method: str, column: Column) -> bool:
    means = {m: column.better * judgement.mean(m, column.key).mean for m in judgement.values}
    known = [v for v in means.values() if np.isfinite(v)]
    return column.key not in NO_CONTEST and len(known) > 1 and means[method] >= max(known)


def _level_with_best(judgement: Judgement) -> list[str]:
    return [d.method for d in judgement.differences if not d.significant]


def _caption(judgement: Judgement, columns: list[Column], added: tuple[str, ...]) -> str:
    seeds = sorted({len(s) for s in judgement.seeds.values()})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    lines = [
        f"Mean{' ± standard error' if seeds[-1] > 1 else ''} over {count} seed{'s' if seeds[-1] > 1 else ''}, on the "
        "clients' own test data after the last round.",
        "Personalized models, unless a row names another.",
    ]
    if len(judgement.rows) > 1:
        lines.append(dagger(judgement))
    if any(c.key == "bmta" for c in columns):
        lines.append("* BMTA, best mean test accuracy, takes its round by test data: optimistic.")
    if any(c.key == "pui" for c in columns):
        lines.append("PUI, PUD, API, JI: against the better of training alone and FedAvg's global model (QoI).")
    if added:
        lines.append(f"In parentheses: added because QoI needs {'them' if len(added) > 1 else 'it'}.")
    return " ".join(lines)


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "±": r"$\pm$", "†": r"$\dagger$", "–": "--"}
    special |= {c: f"\\{c}" for c in "%&#_$"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, c) for c in text)


def _number(value: float) -> str:
    return "" if not math.isfinite(value) else f"{value:.6g}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
