"""The study of docs/robust.md: every combination is there, the page is made of its rows, and attackers do harm."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import robust

    yield robust
    for name in ("robust", "robust_tables"):
        sys.modules.pop(name, None)


def test_every_attack_share_method_and_rule_was_run(study):
    found = study.read(ROOT / "papers" / "results" / "robust.csv")
    settings = [("nobody", 0.0), *((attack, share) for attack in study.SIZES for share in study.SHARES)]
    wanted = {
        (method, model, rule, attack, str(share), str(seed))
        for method in study.METHODS
        for model in (("personal", "global") if method == "fedavg" else ("personal",))
        for rule in study.rules_for(method)
        for attack, share in settings
        for seed in range(2)
    }
    keys = [tuple(row[key] for key in study.FIELDS[:6]) for row in found]
    assert set(keys) == wanted and len(keys) == len(wanted)
    assert set(study.SIZES) == {"scaled", "sign-flipped", "gaussian", "label-flipped", "count-inflated"}
    assert {"krum", "multi-krum", "clip", "median", "trimmed-mean", "geometric-median"} < set(study.RULES)


def test_the_page_has_the_tables_of_these_rows(study):
    from robust_tables import tables

    found = study.read(ROOT / "papers" / "results" / "robust.csv")
    made = tables(found, list(study.METHODS), study.RULES, list(study.SIZES), study.SHARES)
    assert made in (ROOT / "docs" / "robust.md").read_text("utf-8")


def test_a_run_of_the_study_harms_the_honest_and_a_rule_holds(study):
    """The rows of a small part of it, computed anew; other machines may round otherwise."""
    without, ruled, nobody = (
        study.rows("fedavg", rule, attack, share, 0)[1]
        for rule, attack, share in (("none", "scaled", 0.1), ("multi-krum", "scaled", 0.1), ("none", "nobody", 0.0))
    )
    assert [row[:2] for row in (without, ruled, nobody)] == [["fedavg", "global"]] * 3
    assert without[6] < 0.3 < 0.8 < min(ruled[6], nobody[6])
    kept = study.read(ROOT / "papers" / "results" / "robust.csv")
    for row in (without, ruled, nobody):
        (known,) = [k for k in kept if [k[key] for key in study.FIELDS[:6]] == [str(value) for value in row[:6]]]
        assert np.isclose(float(known["mean"]), row[6], atol=0.05)
