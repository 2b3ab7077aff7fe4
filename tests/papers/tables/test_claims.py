"""Verdicts are those of one-sided t-tests over paired seeds."""

import numpy as np
import pytest
from scipy import stats

from personafl_papers.tables.claims import (
    Claim,
    Finding,
    Number,
    above,
    at_least,
    below,
    beyond,
    difference,
    every,
    near,
)
from personafl_papers.tables.table import number, with_settings


def numbers(**rows):
    return {"part": {row: {"accuracy": number(values)} for row, values in rows.items()}}


@pytest.mark.parametrize("seed", range(20))
def test_above_holds_where_a_paired_t_test_says_so(seed):
    random = np.random.default_rng(seed)
    shared = 10 * random.standard_normal(5)  # what seeds share: data, cohorts
    a, b = shared + random.standard_normal(5) + random.uniform(-3, 3), shared + random.standard_normal(5)
    found = numbers(a=a, b=b)
    p = {way: stats.ttest_rel(a, b, alternative=way).pvalue for way in ("greater", "less")}
    expected = "holds" if p["greater"] < 0.05 else "does not hold" if p["less"] < 0.05 else "not decided"
    assert above("part", "accuracy", "a", ["b"])(found).verdict == expected
    assert below("part", "accuracy", "b", ["a"])(found).verdict == expected


def test_a_gap_has_to_be_larger_than_what_is_asked():
    found = numbers(a=[85.0, 85.1, 84.9], b=[80.0, 80.0, 80.1])
    assert above("part", "accuracy", "a", ["b"], by=3)(found).verdict == "holds"
    assert above("part", "accuracy", "a", ["b"], by=6)(found).verdict == "does not hold"
    assert above("part", "accuracy", "a", ["b"], by=5)(found).verdict == "not decided"


def test_one_rival_that_is_better_decides_and_one_that_is_level_leaves_it_open():
    found = numbers(a=[5.0, 5.1, 4.9], worse=[1.0, 1.1, 0.9], level=[4.9, 5.2, 4.8], better=[9.0, 9.1, 9.2])
    assert above("part", "accuracy", "a", ["worse"])(found).verdict == "holds"
    assert above("part", "accuracy", "a", ["worse", "level"])(found).verdict == "not decided"
    assert above("part", "accuracy", "a", ["worse", "level", "better"])(found).verdict == "does not hold"


def test_near_is_decided_in_both_directions():
    found = numbers(a=[5.0, 5.1, 4.9], b=[5.5, 5.6, 5.4], c=[9.0, 9.1, 8.9])
    assert near("part", "accuracy", "a", "b", 1.0)(found).verdict == "holds"
    assert near("part", "accuracy", "b", "a", 1.0)(found).verdict == "holds"
    assert near("part", "accuracy", "a", "c", 1.0)(found).verdict == "does not hold"
    assert near("part", "accuracy", "c", "a", 1.0)(found).verdict == "does not hold"


def test_who_has_fewer_seeds_is_compared_with_the_same_seeds():
    found = numbers(a=[70.0, 80.0, 90.0, 10.0], b=[69.0, 79.1, 88.9])
    said = above("part", "accuracy", "a", ["b"])(found)
    assert said.verdict == "holds" and "b 79.00 (+1 ± 0.058, 3 seeds)" in said.figures


def test_one_seed_decides_nothing():
    assert above("part", "accuracy", "a", ["b"])(numbers(a=[90.0], b=[10.0])).verdict == "not decided"
    assert at_least("part", "accuracy", "a", 0.0)(numbers(a=[90.0])).verdict == "not decided"


def test_without_values_errors_add_up():
    gap = difference(Number(2.0, 0.3, 200), Number(1.0, 0.4, 100))
    assert gap == Number(1.0, 0.5, 100)
    assert beyond(gap, 0.0) == "holds" and beyond(gap, 0.2) == "not decided" and beyond(gap, 2.0) == "does not hold"


def test_figures_of_several_checks_are_those_that_decide():
    def says(verdict):
        return lambda found: Finding(verdict, verdict.upper())

    assert every(says("holds"), says("holds"))({}) == Finding("holds", "HOLDS; HOLDS")
    assert every(says("holds"), says("not decided"))({}) == Finding("not decided", "NOT DECIDED")
    assert every(says("not decided"), says("does not hold"))({}) == Finding("does not hold", "DOES NOT HOLD")


def test_a_claim_about_a_part_that_was_not_run_is_not_measured():
    claim = Claim("a is above b", "Table 1", ("emnist",), above("emnist", "accuracy", "a", ["b"]))
    assert claim.decide(numbers(a=[1.0])) == Finding("not measured", "not run here: emnist")


def test_a_method_whose_runs_all_failed_has_no_number():
    claim = Claim("a is above b", "", ("part",), above("part", "accuracy", "a", ["b"]))
    assert claim.decide(numbers(a=[1.0])) == Finding("not measured", "there is no number for 'b'")


def test_settings_go_to_the_tables_they_name():
    own = {"algorithm": {"name": "ditto", "lam": 1.0}}
    made = with_settings(own, {"algorithm.lam": 0.1, "local.lr": 0.3})
    assert made == {"algorithm": {"name": "ditto", "lam": 0.1}, "local": {"lr": 0.3}}
    assert own == {"algorithm": {"name": "ditto", "lam": 1.0}}, "what is given stays as it is"
