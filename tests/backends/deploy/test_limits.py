"""Attacks by the operator of a federation of real processes, by what a run asks for, and what its sites do."""

import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.backends.flower.ledger import Ledger
from tests.backends.deploy.live import SITES

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
ONE = {"steps": 1, "batch_size": 1, "lr": 0.05}
PRIVATE = {"clip": 1.0, "noise": 4.0, "delta": 1e-5}


def ledger(live, name):
    return Ledger(live.deployment.layout.site(name), name).entries()


def insist(live, name, line):
    """A line in the file of a site, which it reads when its next message comes."""
    with open(live.deployment.layout.site(name) / "site.toml", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def test_a_run_of_single_samples_gets_no_answer(live):
    """Nobody answers: no model leaves a site, and no metrics without training."""
    live.begin("fedavg", rounds=1, local=ONE)
    run = live.end()
    (dropped,) = live.dropped().values()
    assert set(dropped) == set(SITES)
    assert all("samples (least_batch_size), this run has 1" in reason for reason in dropped.values())
    assert all(not ledger(live, name) and not live.states(name) for name in SITES)
    assert run.clients().column("personal_correct").to_pylist() == [None] * 3
    assert "it trained 0 times in this run and reported metrics 0 times" in live.deployment.processes["run"].output()


def test_an_epsilon_of_its_own_ends_a_sites_part_over_two_runs(live):
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    insist(live, "west", "most_epsilon = 3.5")  # two answers are 2.9
    for _ in range(2):  # the same run, to the seed
        live.begin("fedavg", rounds=1, privacy=PRIVATE)
        run = live.end()
        assert not live.dropped()
        told = run.clients().to_pydict()
        west = told["client"].index("west")
        assert told["personal_correct"][west] is None and told["personal_correct"][west - 1] is not None
    assert told["epsilon"][west] == pytest.approx(2.96, abs=0.1), "both, under whatever folder: they are the same job"
    live.begin("fedavg", rounds=1, privacy=PRIVATE, seed=4)
    live.end()
    (dropped,) = live.dropped().values()
    assert list(dropped) == ["west"] and "allows ε = 3.5 over all runs (most_epsilon" in dropped["west"]
    assert [entry.what for entry in ledger(live, "west")] == ["update"] * 2
    assert [entry.what for entry in ledger(live, "north")] == ["update", "metrics"] * 3
    assert live.deployment.model("west").exists()
