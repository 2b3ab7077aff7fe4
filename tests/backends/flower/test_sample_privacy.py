"""Noise in every local step, at sites: batches and noise that the operator cannot know, and what they cost."""

import json

import pytest
import torch

from personafl.errors import ConfigError
from personafl.training.accounting import sample_epsilon
from tests.backends.flower.asking import LOCAL, Operator
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import federation, flower, loop, server_state

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
PRIVATE = {"clip": 1.0, "noise": 2.0, "unit": "sample"}
WHOLE = {"lr": 0.1, "batch_size": 40, "steps": 1}
"""One step on all samples of the site."""


def theta(ann, seed=0, **job):
    return ann.train(ann.job(seed=seed, **job)).up["theta"].double()


def test_without_noise_and_with_a_wide_clip_it_is_plain_training(tmp_path):
    """Where a batch is all of the samples, so that there is nothing to draw."""
    more = {"local": {"lr": 0.1, "steps": 3, "batch_size": 0}}
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    ours = flower(tmp_path / "flower", grid, "ditto", privacy={**PRIVATE, "clip": 1e6, "noise": 0.0}, **more)
    reference = loop(tmp_path / "loop", "ditto", federation(), **more)
    torch.testing.assert_close(
        server_state(ours)["server.theta"], server_state(reference)["server.theta"], rtol=1e-5, atol=1e-6
    )


def test_the_noise_of_a_step_is_what_was_asked_for_and_never_the_same(tmp_path):
    """N(0, (zC)²) on the sum of clipped gradients, of which a step takes lr/B."""
    ann = Operator(tmp_path)
    exact = theta(ann, privacy={**PRIVATE, "noise": 0.0}, local=WHOLE)
    one, two = (theta(ann, privacy={**PRIVATE, "noise": 500.0}, local=WHOLE) for _ in range(2))
    expected = 0.1 * 500.0 / 40
    for found in (one - exact, two - exact, (one - two) / 2**0.5):
        assert float(found.std()) == pytest.approx(expected, rel=0.3)  # of 51 numbers
    # Nor is it taken off by another clip: twice the first would have the second's noise.
    doubled = theta(ann, privacy={**PRIVATE, "clip": 2.0, "noise": 500.0}, local=WHOLE)
    assert float((doubled - exact - 2 * (one - exact)).abs().median()) > expected / 2


def test_the_operator_cannot_know_who_is_in_a_batch(tmp_path):
    """With the same seed, and no noise that would hide it: other batches each time."""
    ann = Operator(tmp_path)
    answers = [theta(ann, privacy={**PRIVATE, "noise": 0.0}, local=LOCAL) for _ in range(3)]
    assert all(not torch.isclose(a, b).all() for a, b in zip(answers, answers[1:] + answers[:1], strict=True))


def test_epsilon_is_that_of_all_batches_that_were_drawn(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    run = flower(tmp_path / "run", grid, "fedavg", rounds=3, privacy=PRIVATE)
    assert not any("dropped" in record for record in run.rounds())
    for row in run.clients().to_pylist():
        n = federation().client(row["client"])["train"][1].numel()
        # 3 rounds of 2 steps, in batches of 4 on average.
        assert row["epsilon"] == pytest.approx(sample_epsilon(2.0, 1e-5, 4 / n, 6), rel=1e-9)
    lines = [json.loads(line) for line in (tmp_path / "sites" / "site-2" / "ledger.jsonl").open()]
    assert [line["batches"] for line in lines if line["what"] == "update"] == [2, 2, 2]
    assert all(line["noise"] == 0 for line in lines)  # of an answer, which is what `most_epsilon` counts


def test_a_site_that_wants_noise_for_itself_as_a_whole_is_not_content(tmp_path):
    ann = Operator(tmp_path, least_noise=1.0)
    with pytest.raises(ConfigError, match=r"privacy\.noise of at least 1, this run has 0"):
        theta(ann, privacy=PRIVATE)
    ann = Operator(tmp_path / "other", most_epsilon=100.0)
    with pytest.raises(ConfigError, match=r"allows ε = 100 over all runs"):
        theta(ann, privacy=PRIVATE)


@pytest.mark.parametrize(
    ("local", "said"),
    [
        ({"steps": 1, "batch_size": 1}, r"different training samples|at least 8 samples"),
        ({"steps": 30, "batch_size": 1}, r"at least 8 samples \(least_batch_size\)"),
    ],
)
def test_a_sites_limits_hold_for_batches_that_are_drawn_so(tmp_path, local, said):
    with pytest.raises(ConfigError, match=said):
        theta(Operator(tmp_path), privacy={**PRIVATE, "noise": 0.0}, local={"lr": 0.1, **local})


def test_whoever_shows_more_than_gradients_is_refused_before_anybody_is_asked(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    with pytest.raises(ConfigError, match=r'privacy\.unit = "sample" cannot be combined with this algorithm'):
        flower(tmp_path / "run", grid, "fedproto", privacy=PRIVATE, model={"name": "mlp", "hidden": [3]})
    assert not (tmp_path / "run" / "run" / "run.toml").exists()


def test_a_run_goes_on_with_what_was_spent(tmp_path):
    """A server that starts over with the same sites: their ledgers know."""
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    for folder, batches in (("one", 4), ("two", 8)):
        run = flower(tmp_path / folder, grid, "fedavg", rounds=2, privacy=PRIVATE)
        row = run.clients().to_pylist()[0]
        n = federation().client(row["client"])["train"][1].numel()
        assert row["epsilon"] == pytest.approx(sample_epsilon(2.0, 1e-5, 4 / n, batches), rel=1e-9)


def test_the_simulator_of_sites_and_the_loop_have_the_same_seeded_noise(tmp_path):
    """Fresh noise is for sites of their own: `flower-sim` can be repeated, and says so."""
    from personafl.backends.flower.limits import SiteEngine
    from personafl.engines.loop import LoopEngine
    from personafl.kernels.per_sample import PerSample

    ann = Operator(tmp_path)
    for engine, fresh in ((SiteEngine, True), (LoopEngine, False)):
        made = engine(ann.task({"name": "mclr"}), ann.site._data, ann.job().make_local(), 0, threads=1)
        made.protect_samples(PerSample(1.0, 2.0))
        assert made.task.per_sample.fresh is fresh
