"""FedFomo against numpy in float64 on quadratics; and whose models the server sends."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from personafl.algorithms import FedFomo, Separate
from personafl.errors import ConfigError
from personafl.federation import Federation
from tests.oracles.quadratic import clustered, personal, quadratics, server, states, train

LR, STEPS, START = 0.02, 3, np.array([1.0, -2.0, 3.0])


def loss(problem, m, w):
    """The validation loss is that on the training data here, without what w cannot change."""
    return 0.5 * (w - problem.z[m]) @ problem.A[m] @ (w - problem.z[m])


def descend(problem, m, w):
    for _ in range(STEPS):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def mixed(problem, m, theta, models):
    gaps = models - theta
    gains = np.array(
        [
            (loss(problem, m, theta) - loss(problem, m, model)) / max(np.linalg.norm(gap), 1e-12)
            for model, gap in zip(models, gaps, strict=True)
        ]
    )
    positive = np.maximum(gains, 0)
    return theta + positive @ gaps / max(positive.sum(), 1e-30), gains


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, engine):
    """With as many candidates as there are others, chance has no say."""
    problem = quadratics(validation=True)
    runner = train(problem, FedFomo(candidates=3), tmp_path, 4, LR, STEPS, START, engine=engine)
    theta, affinity = np.tile(START, (4, 1)), np.zeros((4, 4))
    for _ in range(4):
        new = np.empty_like(theta)
        for m in range(4):
            others = [j for j in range(4) if j != m]
            start, gains = mixed(problem, m, theta[m], theta[others])
            new[m], affinity[m, others] = descend(problem, m, start), affinity[m, others] + gains
        theta = new
    np.testing.assert_allclose(personal(runner), theta, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(server(runner, "models"), theta, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(server(runner, "affinity"), affinity, rtol=1e-3, atol=1e-3)
    assert (affinity > 0.01).any() and (affinity < -0.01).any()


def test_without_validation_data_it_is_training_alone(tmp_path):
    problem = quadratics()
    ours = train(problem, FedFomo(), tmp_path / "a", 4, LR, STEPS, START)
    np.testing.assert_array_equal(
        personal(ours), personal(train(problem, Separate(), tmp_path / "b", 4, LR, STEPS, START))
    )


def test_the_server_learns_who_is_in_the_same_cluster(tmp_path):
    """With three of seven others at a time, those of the client's own cluster come to the front."""
    members = np.arange(8) % 2
    known = clustered(np.array([[3.0, 0.0, 1.0], [-3.0, 1.0, 0.0]]), members, 0.05)
    data = {c: known.federation.client(c)["train"] for c in known.federation.ids}
    federation = Federation.from_clients({c: {"train": d, "val": d, "test": d} for c, d in data.items()})
    known = replace(known, federation=federation)
    runner = train(known, FedFomo(candidates=3, explore=1.0), tmp_path, 18, LR, STEPS)
    sent = runner.algorithm._candidates({**runner.server, "round": torch.tensor(100)}, torch.arange(8))
    assert (members[sent.numpy()] == members[:, None]).all()


def test_candidates_are_the_liked_ones_or_drawn_and_never_oneself():
    greedy, curious = FedFomo(candidates=2, explore=0.0), FedFomo(candidates=2, explore=1.0, explore_decay=0.0)
    state = greedy.new_server(torch.arange(3.0), 5)
    state["affinity"] = torch.tensor([[0.0, 3.0, -1.0, 2.0, 1.0]]).repeat(5, 1)
    state["seen"] |= True
    assert greedy._candidates(state, torch.arange(5)).tolist() == [[1, 3], [3, 4], [1, 3], [1, 4], [1, 3]]
    drawn = [curious._candidates({**state, "round": torch.tensor(r)}, torch.arange(5)) for r in range(40)]
    assert all((rows != torch.arange(5)[:, None]).all() and (rows[:, 0] != rows[:, 1]).all() for rows in drawn)
    counts = torch.bincount(torch.stack(drawn)[:, 0].flatten(), minlength=5)
    assert counts[0] == 0 and counts[1:].min() >= 10  # of 80 draws for client 0, twenty each are expected
    assert curious._candidates(state, torch.tensor([3])).equal(curious._candidates(state, torch.arange(5))[3:4])
    state["seen"][1] = False
    assert greedy._candidates(state, torch.tensor([0])).tolist() == [[3, 4]]


def test_exploration_fades():
    algorithm = FedFomo(candidates=1, explore=1.0, explore_decay=0.1)
    state = algorithm.new_server(torch.arange(3.0), 30)
    state["affinity"][:, 7] = 1.0
    state["seen"] |= True
    taken = [
        (algorithm._candidates({**state, "round": torch.tensor(r)}, torch.arange(30)) == 7).double().mean()
        for r in (0, 5, 10)
    ]
    assert taken[0] < 0.3 < taken[1] < 0.8 < taken[2]


def test_who_was_never_active_has_the_mean_of_those_that_were(tmp_path):
    runner = train(quadratics(clients=8, validation=True), FedFomo(), tmp_path, 2, LR, STEPS, activity=0.25)
    idle, models = runner.active == 0, server(runner, "models")
    assert 0 < idle.sum() < 8
    np.testing.assert_allclose(personal(runner)[idle], np.tile(models[~idle].mean(0), (idle.sum(), 1)), rtol=1e-5)


def test_traffic_is_a_model_and_a_number_for_each_candidate_up_and_the_candidates_down(tmp_path):
    runner = train(quadratics(validation=True), FedFomo(candidates=2), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 3 * 4 * (3 + 2) * 4, "bytes_down": 3 * 4 * 2 * 3 * 4}
    assert states(runner)["theta"].shape == (4, 3)


@pytest.mark.parametrize("bad", [{"candidates": 0}, {"explore": 1.1}, {"explore_decay": -0.1}])
def test_bad_settings_are_one_line(bad):
    (key,) = bad
    with pytest.raises(ConfigError, match=rf"algorithm\.{key} = .*: must be ") as error:
        FedFomo(**bad)
    assert "\n" not in str(error.value)
