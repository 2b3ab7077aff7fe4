"""CFL against numpy in float64, on clusters that are known."""

from itertools import combinations

import numpy as np
import pytest
import torch

import personafl as pf
from personafl.algorithms import CFL, FedAvg
from personafl.algorithms.cfl import bipartition
from personafl.errors import ConfigError
from tests.oracles.quadratic import clustered, fixed_point, personal, quadratics, server, train

LR, STEPS = 0.1, 3
TWO, THREE = np.array([0, 1, 1, 0, 0, 1]), np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
CENTRES = np.array([[2.0, 1.0, -1.0], [-2.0, 0.5, 1.0], [0.5, -3.0, 0.0]])


def descend(problem, m, w):
    for _ in range(STEPS):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def parted(updates):
    """The bipartition of the smallest largest cosine across, of all that there are."""
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    cosine, everybody = unit @ unit.T, range(len(updates))
    found = []
    for size in range(1, len(updates) // 2 + 1):
        for some in combinations(everybody, size):
            others = [i for i in everybody if i not in some]
            found.append((cosine[np.ix_(some, others)].max(), list(some), others))
    return min(found)


def by_hand(problem, rounds, eps1, eps2, weights="samples", gamma=0.7, start=np.zeros(3)):  # noqa: B008
    """The clusters, as lists of clients, and the model of each client."""
    n = problem.n if weights == "samples" else np.ones(len(problem.n))
    clusters, models = [list(range(len(n)))], [start]
    for _ in range(rounds):
        next_clusters, next_models = [], []
        for clients, w in zip(clusters, models, strict=True):
            updates = np.array([descend(problem, m, w) - w for m in clients])
            mean = np.average(updates, axis=0, weights=n[clients])
            parts = [list(range(len(clients)))]
            if np.linalg.norm(mean) < eps1 and np.linalg.norm(updates, axis=1).max() > eps2 and len(clients) > 1:
                across, *two = parted(updates)
                parts = two if np.sqrt((1 - across) / 2) > gamma else parts
            for part in parts:
                next_clusters.append([clients[i] for i in part])
                next_models.append(w + np.average(updates[part], axis=0, weights=n[next_clusters[-1]]))
        clusters, models = next_clusters, next_models
    each = np.empty_like(problem.z)
    for clients, w in zip(clusters, models, strict=True):
        each[clients] = w
    return {frozenset(clients) for clients in clusters}, each


def clusters_of(runner):
    found = runner.server["cluster"].numpy()
    return {frozenset(np.flatnonzero(found == c).tolist()) for c in np.unique(found)}


def groups(members):
    return {frozenset(np.flatnonzero(members == g).tolist()) for g in np.unique(members)}


@pytest.mark.parametrize("weights, engine", [("samples", "stacked"), ("equal", "loop")])
def test_every_round_equals_the_algorithm_by_hand(tmp_path, weights, engine):
    """Round after round, through the split and beyond it."""
    problem, algorithm = clustered(CENTRES, TWO, 0.1), CFL(eps1=0.05, eps2=0.2, weights=weights)
    runner, seen = train(problem, algorithm, tmp_path, 0, LR, STEPS, engine=engine), []
    for round in range(1, 16):
        runner.step()
        expected, models = by_hand(problem, round, 0.05, 0.2, weights)
        assert clusters_of(runner) == expected
        np.testing.assert_allclose(personal(runner), models, rtol=1e-4, atol=1e-5)
        seen.append(len(expected))
    assert seen[0] == 1 and seen[-1] == 2


@pytest.mark.parametrize("members", [TWO, THREE], ids=["two", "three"])
def test_known_clusters_are_found_and_then_each_is_fedavg_of_its_clients_alone(tmp_path, members):
    problem = clustered(CENTRES, members, 0.05)
    runner = train(problem, CFL(), tmp_path, 30, LR, STEPS)
    assert clusters_of(runner) == groups(members)
    for clients in map(sorted, groups(members)):
        p = problem.n[clients] / problem.n[clients].sum()
        alone = fixed_point(
            lambda w, c=clients, p=p: sum(q * descend(problem, m, w) for q, m in zip(p, c, strict=True)), 3
        )
        np.testing.assert_allclose(personal(runner)[clients], np.tile(alone, (len(clients), 1)), rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("activity", [1.0, 0.5])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_without_a_split_it_is_fedavg_bit_for_bit(tmp_path, weights, activity):
    problem = quadratics()
    whole = train(problem, CFL(eps1=1e-30, weights=weights), tmp_path, 4, LR, STEPS, activity=activity)
    average = train(problem, FedAvg(weights), tmp_path, 4, LR, STEPS, activity=activity)
    np.testing.assert_array_equal(personal(whole), np.tile(server(average), (4, 1)))


def test_clients_that_agree_are_not_split(tmp_path):
    """At the common optimum nobody has anywhere to go (ε2); and updates of like directions are not parted (γ)."""
    runner = train(clustered(CENTRES[:1], np.zeros(5, int)), CFL(), tmp_path / "a", 20, LR, STEPS)
    assert len(runner.server["models"]) == 1
    updates = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-0.1, 1.0]])
    mean, longest = torch.zeros(2), torch.tensor(1.0)
    assert CFL()._split(updates[:2], mean, longest) is None
    assert CFL(gamma=0.05)._split(updates[:2], mean, longest) is not None
    assert CFL()._split(updates, mean, longest).tolist() in ([1, 1, 0], [0, 0, 1])


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_is_the_optimal_bipartition(seed):
    updates = np.random.default_rng(seed).standard_normal((7, 3))
    across, *two = parted(updates)
    unit = torch.from_numpy(updates / np.linalg.norm(updates, axis=1, keepdims=True))
    first = bipartition(unit @ unit.T, "single")
    ours = [torch.nonzero(part).flatten().tolist() for part in (first, ~first)]
    assert sorted(ours) == sorted(two)
    kept_apart = CFL(gamma=0.0)._split(torch.from_numpy(updates), torch.zeros(3).double(), torch.tensor(0.1))
    assert kept_apart.equal(first)
    other = bipartition(unit @ unit.T, "complete")
    assert (unit @ unit.T)[other][:, ~other].max() >= across - 1e-9


def test_who_was_not_active_then_goes_where_those_went_who_are_like_it(tmp_path):
    """Four of twelve a round: clusters are right in the end, and nobody is in one that was split."""
    members = np.arange(12) % 2
    problem = clustered(CENTRES, members, 0.05)
    runner = train(problem, CFL(eps1=0.5, eps2=0.6), tmp_path, 0, LR, STEPS, activity=1 / 3)
    while len(runner.server["models"]) == 1:
        runner.step()
    late = np.flatnonzero(runner.server["cluster"].numpy() == 0)
    assert len(late)
    np.testing.assert_array_equal(personal(runner)[late], np.tile(server(runner, "models")[0], (len(late), 1)))
    for _ in range(25):
        runner.step()
    assert clusters_of(runner) == groups(members)
    np.testing.assert_allclose(personal(runner), CENTRES[members], atol=0.2)


def test_a_run_whose_clusters_grow_is_resumed_to_the_bit(tmp_path):
    problem = clustered(CENTRES, TWO, 0.1)
    straight = train(problem, CFL(), tmp_path / "a", 25, LR, STEPS)
    begun = train(problem, CFL(), tmp_path / "b", 20, LR, STEPS)
    begun._checkpoint()
    again = train(problem, CFL(), tmp_path / "b", 0, LR, STEPS)
    assert again.resume() and len(again.server["models"]) == len(begun.server["models"]) > 1
    for _ in range(5):
        again.step()
    for name, value in straight.server.items():
        assert torch.equal(again.server[name], value), name


def test_a_newcomer_has_the_model_of_the_cluster_that_is_like_it():
    problem = clustered(CENTRES, TWO, 0.05)
    module = torch.nn.Linear(3, 1, bias=False)
    local = pf.Local(lr=LR, batch_size=0, steps=STEPS)
    run = pf.train(problem.federation, module, CFL(), rounds=30, local=local, progress=False, threads=1)
    for centre in CENTRES[:2]:
        x = np.random.default_rng(3).standard_normal((10, 3)).astype(np.float32)
        net = run.personalize(x, (x @ centre).astype(np.float32))
        np.testing.assert_allclose(net.weight[0].detach().numpy(), centre, atol=0.1)


@pytest.mark.parametrize(
    "bad, found",
    [
        ({"eps1": 0.0}, r"algorithm\.eps1 = 0\.0: must be above 0"),
        ({"eps1": 1.0, "eps2": 0.5}, r"algorithm\.eps2 = 0\.5: must be at least eps1"),
        ({"stationary": 1.0}, r"algorithm\.stationary = 1\.0: must be in \(0, 1\)"),
        ({"gamma": 1.0}, r"algorithm\.gamma = 1\.0: must be in \[0, 1\)"),
    ],
)
def test_bad_settings_are_one_line(bad, found):
    with pytest.raises(ConfigError, match=found) as error:
        CFL(**bad)
    assert "\n" not in str(error.value)


def test_updates_in_the_same_direction_whose_cosine_is_rounded_above_1():
    cosines = torch.tensor([[1.0, 1.0 + 1e-15, -1.0], [1.0 + 1e-15, 1.0, -1.0], [-1.0, -1.0, 1.0]], dtype=torch.float64)
    assert cosines.max() > 1
    for linkage in ("single", "complete"):
        assert bipartition(cosines, linkage).tolist() == [True, True, False]
