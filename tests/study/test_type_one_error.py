"""The whole answer on methods that are exchangeable: any winner that is named is wrong. Seeds are fixed.

`benchmarks/type_one_error.py` draws the federations; docs/significance.md has its figures with more of them.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from personafl.study.judgement import judged
from personafl.study.words import sentences

FILE = Path(__file__).parents[2] / "benchmarks" / "type_one_error.py"
_spec = importlib.util.spec_from_file_location("type_one_error", FILE)
drawn = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(drawn)


def answers(clients, count, **settings):
    draw = np.random.default_rng(clients)
    return [judged(*drawn.federation(draw, clients, **settings)) for _ in range(count)]


@pytest.mark.parametrize(("clients", "count"), [(4, 40), (40, 60), (1000, 3)])
@pytest.mark.parametrize("settings", [{}, pytest.param({"worse": 0.6}, marks=pytest.mark.slow)])
def test_winners_out_of_noise_are_rare(clients, count, settings):
    wrong = sum(bool(drawn.named(found)) for found in answers(clients, count, **settings))
    assert wrong <= 0.05 * count


def test_two_models_are_told_apart_by_chance_in_a_twentieth():
    """The least conservative case: the level is met, not undercut."""
    found = answers(40, 100, methods=0, seeds=1)
    named = sum(bool(j.winner) for j in found)
    assert stats.binomtest(named, len(found), 0.05).pvalue > 0.01


def test_a_real_difference_is_found_and_a_sentence_says_so():
    found = answers(40, 10, better=1.0, methods=2)
    assert sum(drawn.named(j) == {"method-0"} for j in found) >= 7
    won = next(j for j in found if j.winner)
    assert any("is shown to be better than each of the 3 other models" in said for said in sentences(won))
