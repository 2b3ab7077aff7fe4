"""What the docs say of the study is what its kept results say, ranked here anew."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "methods-study.md"
RESULTS = ROOT / "papers" / "results" / "methods-small" / "results.csv"


def kept():
    """Accuracies by method and federation: −∞ where a method failed; and who refused a federation."""
    scores, refused = {}, set()
    with RESULTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            value = float(row["accuracy"]) if row["status"] == "done" else -np.inf
            scores.setdefault(row["method"], {})[row["federation"]] = value
            refused |= {row["method"]} if row["status"] == "refused" else set()
    return scores, refused


def by_hand(values):
    """Ranks, 1 for the largest: one more than how many are larger, and half of those that are equal."""
    larger = (values[:, None] < values[None, :]).sum(1)
    equal = (values[:, None] == values[None, :]).sum(1)
    return 1 + larger + (equal - 1) / 2


def test_mean_ranks_are_those_of_the_kept_results():
    scores, refused = kept()
    methods = [method for method in scores if method not in refused]
    table = np.array([list(scores[method].values()) for method in methods])
    means = np.mean([by_hand(column) for column in table.T], axis=0)
    accuracies = PAGE.read_text(encoding="utf-8").partition("## Accuracy")[2].partition("## ")[0]
    shown = dict(re.findall(r"^\| `(.+?)` \| (\d+\.\d) \|", accuracies, re.MULTILINE))
    assert set(shown) == set(methods) and len(scores[methods[0]]) >= 6
    assert {m: float(shown[m]) for m in methods} == pytest.approx(dict(zip(methods, means, strict=True)), abs=0.051)
