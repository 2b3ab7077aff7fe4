"""What is tried: as often for every method, and nothing that a method does not have."""

from math import prod

import pytest

from personafl.algorithms import ALGORITHMS
from personafl.errors import ConfigError
from personafl_papers.methods.grids import FIXED, GRIDS, TRIES, grid_of
from personafl_papers.methods.runs import check_grids, tries
from personafl_papers.methods.sizes import SIZES


@pytest.mark.parametrize("method", {**GRIDS, **FIXED})
def test_every_method_has_the_same_number_of_tries(method):
    assert prod(map(len, grid_of(method).values())) == TRIES
    assert len(set(grid_of(method)["local.lr"])) >= 2


@pytest.mark.parametrize("method", list(ALGORITHMS.usable()[0]))
def test_every_method_has_a_grid_that_it_takes(method):
    assert method in GRIDS, "write what is to be tried for it into grids.py"
    check_grids([method])
    made = [run.recipe() for run in tries("none", method, SIZES["small"], 0)]
    assert len({(recipe.local.lr, recipe.algorithm) for recipe in made}) == TRIES


def test_a_setting_that_a_method_does_not_have_is_named(monkeypatch):
    monkeypatch.setitem(GRIDS, "ditto", {"algorithm.mu": [1.0]})
    with pytest.raises(ConfigError, match=r"algorithm\.mu"):
        check_grids(["fedavg", "ditto"])
