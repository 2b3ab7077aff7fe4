"""Tables and a picture from the rows of benchmarks/robust.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[dict[str, str]]


def tables(
    found: Rows, methods: Sequence[str], rules: Sequence[str], attacks: Sequence[str], shares: Sequence[float]
) -> str:
    """Markdown: without a rule by attack and share; the rules by attack, mean and worst tenth; what rules cost."""
    lines = ["### Without a rule", "", *without(found, methods, attacks, shares)]
    for share in shares[1:]:
        lines += ["", f"### With {share:.0%} attackers", "", *by_rule(found, methods, rules, attacks, share)]
    return "\n".join([*lines, "", "### Without attackers", "", *costs(found, methods, rules)])


def without(found: Rows, methods: Sequence[str], attacks: Sequence[str], shares: Sequence[float]) -> list[str]:
    """Each method alone against each attack."""
    head = ["method", "nobody", *(f"{attack} {share:.0%}" for attack in attacks for share in shares)]
    lines = [_row(head), _row(["---"] + ["--:"] * (len(head) - 1))]
    for label, of in _labels(methods):
        cells = [_cell(found, **of, rule="none", attack="nobody", share=0.0)]
        cells += [
            _cell(found, **of, rule="none", attack=attack, share=s, spread=False) for attack in attacks for s in shares
        ]
        lines.append(_row([f"`{label}`", *cells]))
    return lines


def by_rule(
    found: Rows, methods: Sequence[str], rules: Sequence[str], attacks: Sequence[str], share: float
) -> list[str]:
    """Mean and worst tenth of each method with each rule."""
    head = ["method", "rule", *attacks]
    lines = [_row(head), _row(["---", "---"] + ["--:"] * len(attacks))]
    for label, of in _labels(methods):
        for rule in rules:
            cells = [_cell(found, **of, rule=rule, attack=attack, share=share, worst=True) for attack in attacks]
            if any(cells):
                lines.append(_row([f"`{label}`", rule, *cells]))
    return lines


def costs(found: Rows, methods: Sequence[str], rules: Sequence[str]) -> list[str]:
    """What each rule does where nobody attacks."""
    lines = [_row(["method", *rules]), _row(["---"] + ["--:"] * len(rules))]
    for label, of in _labels(methods):
        lines.append(_row([f"`{label}`", *(_cell(found, **of, rule=r, attack="nobody", share=0.0) for r in rules)]))
    return lines


def picture(found: Rows, methods: Sequence[str], attacks: Sequence[str], shares: Sequence[float], path: Path) -> None:
    """Accuracy of the honest by the share of attackers: a column for each attack, without a rule and with two."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "robust", "svg.fonttype": "none"}
    import matplotlib.pyplot as plt

    shown = ("none", "clip", "median")
    figure, axes = plt.subplots(len(shown), len(attacks), figsize=(13, 7.5), sharex=True, sharey=True)
    for row, rule in enumerate(shown):
        for axis, attack in zip(axes[row], attacks, strict=True):
            for number, (label, of) in enumerate(_labels(methods)):
                here = "none" if label == "separate" else rule
                means = [value(found, **of, rule=here, attack=a, share=s) for a, s in
                         [("nobody", 0.0), *((attack, s) for s in shares)]]  # fmt: skip
                axis.plot([0, *shares], means, marker=".", color=f"C{number}", label=label,
                          linestyle="--" if label == "separate" else "-")  # fmt: skip
            axis.set_ylim(0, 1)
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_title(attack)
        axes[row][0].set_ylabel({"none": "no rule", "clip": "clip", "median": "median"}[rule])
    figure.supxlabel("share of attackers")
    figure.supylabel("mean accuracy of honest clients")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=len(labels), frameon=False)
    figure.tight_layout(rect=(0.01, 0.01, 1, 0.95))
    figure.savefig(path, metadata={"Date": None})


def value(found: Rows, key: str = "mean", **of: Any) -> float:
    """The mean over seeds; a run that ended early counts as nothing learned, 0."""
    return float(np.mean(values)) if (values := _values(found, key, **of)) else float("nan")


def _values(found: Rows, key: str, **of: Any) -> list[float]:
    chosen = [row for row in found if all(row[name] == str(wanted) for name, wanted in of.items())]
    return [float(np.nan_to_num(float(row[key]))) for row in chosen]


def _labels(methods: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """What tables call a method and its model."""
    made = []
    for method in methods:
        if method == "fedavg":
            made.append(("fedavg, global model", {"method": method, "model": "global"}))
        label = "fedavg, after local training" if method == "fedavg" else method
        made.append((label, {"method": method, "model": "personal"}))
    return made


def _cell(found: Rows, spread: bool = True, worst: bool = False, **of: Any) -> str:
    values = _values(found, "mean", **of)
    if not values:
        return ""
    text = f"{100 * np.mean(values):.0f}"
    if spread and len(values) > 1:
        text += f" ± {100 * np.std(values, ddof=1):.0f}"
    return f"{text} ({100 * value(found, 'worst', **of):.0f})" if worst else text


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
