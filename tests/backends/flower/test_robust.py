"""Robust rules on Flower: the loop's answer to the bit, and a site that cannot spoil a run for the others."""

import numpy as np
import pytest

from personafl.training.robust import RULES
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, loop, same, same_clients, server_state
from tests.backends.flower.test_hostile_sites import ask_again_soon, grid_with, sends, theta  # noqa: F401

NO_LIMITS = {"max_weight": 1.0, "max_norm_factor": 0.0}


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [*(("fedavg", rule) for rule in RULES), ("selffl", "median"), ("fedamp", "clip"), ("fedper", "trimmed-mean")],
)
def test_a_rule_is_on_flower_what_it_is_on_the_loop(tmp_path, algorithm, rule):
    robust = {"rule": rule, "factor": 1.0, "attackers": 0.0 if "krum" in rule else 0.3, "max_weight_factor": 1.1}
    more = {"model": {"name": "mlp", "hidden": [3]}, "robust": robust, "rounds": 2}
    ours = flower(tmp_path / "flower", MemoryGrid(sites_of(tmp_path / "sites", federation())), algorithm,
                  **more, **NO_LIMITS)  # fmt: skip
    reference = loop(tmp_path / "loop", algorithm, federation(), **more)
    assert same(server_state(ours), server_state(reference))
    assert same_clients(ours, reference)
    assert [record.get("robust") for record in ours.rounds()] == [r.get("robust") for r in reference.rounds()]


@pytest.mark.parametrize("rule", ["clip", "median", "geometric-median"])
def test_a_site_that_sends_much_too_much_does_little(tmp_path, rule):
    """Within what `max_norm_factor` lets through, it does much to a mean."""

    def run(name, robust):
        grid = grid_with(tmp_path / name, sends(lambda _, array: (8 * array).astype(np.float32)))
        return theta(flower(tmp_path / name / "run", grid, "fedavg", round_timeout=30.0, **robust))

    honest = theta(flower(tmp_path / "honest", MemoryGrid(sites_of(tmp_path / "h", federation())), "fedavg"))
    moved = {name: float((run(name, table) - honest).norm()) for name, table in
             {"mean": {}, "rule": {"robust": {"rule": rule}}}.items()}  # fmt: skip
    assert 2 * moved["rule"] < moved["mean"]
