"""IFCA on clusters that are known, and as fedavg where there is one model."""

import numpy as np
import pytest
import torch

import personafl as pf
from personafl.algorithms import IFCA, FedAvg
from personafl.algorithms.base import JobInfo
from personafl.errors import ConfigError
from personafl.settings import Local
from tests.oracles.quadratic import clustered, fixed_point, personal, quadratics, server, train

LR, STEPS, START = 0.1, 3, np.array([1.0, -2.0, 3.0])
MEMBERS = np.array([0, 1, 1, 0, 0, 1])
CENTRES = np.array([[2.0, 1.0, -1.0], [-2.0, 0.5, 1.0]])


def loss(problem, m, w):
    return (w - problem.z[m]) @ problem.A[m] @ (w - problem.z[m])


def descend(problem, m, w):
    for _ in range(STEPS):
        w = w - LR * problem.A[m] @ (w - problem.z[m])
    return w


def by_hand(problem, models, cohorts, weights):
    """(The losses on quadratics have a constant more, the same for all models.)"""
    models, n = models.copy(), problem.n if weights == "samples" else np.ones(len(problem.n))
    for cohort in cohorts:
        chosen = {m: int(np.argmin([loss(problem, m, w) for w in models])) for m in cohort}
        new = models.copy()
        for j in set(chosen.values()):
            mine = [m for m in cohort if chosen[m] == j]
            new[j] = np.average([descend(problem, m, models[j]) for m in mine], axis=0, weights=n[mine])
        models = new
    own = [int(np.argmin([loss(problem, m, w) for w in models])) for m in range(len(n))]
    return models, models[own]


@pytest.mark.parametrize(
    "weights, engine, activity", [("samples", "stacked", 1.0), ("equal", "loop", 1.0), ("samples", "stacked", 0.5)]
)
def test_every_round_equals_the_algorithm_by_hand(tmp_path, weights, engine, activity):
    """Also where a model is chosen by nobody: it stays."""
    problem = clustered(CENTRES, MEMBERS, 0.3)
    runner = train(problem, IFCA(3, weights), tmp_path, 0, LR, STEPS, START, activity=activity, engine=engine)
    first = server(runner, "models")
    assert np.array_equal(first[0], START) and np.abs(first[1:] - START).max(1).min() > 0.1
    for _ in range(4):
        runner.step()
    models, own = by_hand(problem, first, [runner.schedule.cohort(0, r, 6).tolist() for r in range(1, 5)], weights)
    np.testing.assert_allclose(server(runner, "models"), models, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(runner), own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activity", [1.0, 0.5])
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_one_cluster_is_fedavg_bit_for_bit(tmp_path, weights, activity):
    problem = quadratics()
    ours = train(problem, IFCA(1, weights), tmp_path / "a", 3, LR, STEPS, START, activity=activity)
    average = train(problem, FedAvg(weights), tmp_path / "b", 3, LR, STEPS, START, activity=activity)
    np.testing.assert_array_equal(server(ours, "models")[0], server(average))
    np.testing.assert_array_equal(personal(ours), np.tile(server(average), (4, 1)))


def test_known_clusters_are_found_and_each_is_fedavg_of_its_clients_alone(tmp_path):
    problem = clustered(CENTRES, MEMBERS, 0.1)
    runner = train(problem, IFCA(), tmp_path, 0, LR, STEPS)
    runner.server["models"] = torch.tensor([[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0]])  # a start that leans to either side
    for _ in range(25):
        runner.step()
    for g in (0, 1):
        clients = np.flatnonzero(MEMBERS == g)
        p = problem.n[clients] / problem.n[clients].sum()
        alone = fixed_point(
            lambda w, c=clients, p=p: sum(q * descend(problem, m, w) for q, m in zip(p, c, strict=True)), 3
        )
        np.testing.assert_allclose(personal(runner)[clients], np.tile(alone, (3, 1)), rtol=1e-3, atol=1e-3)


def test_models_are_drawn_like_the_first_and_follow_from_it():
    theta0 = torch.cat([torch.zeros(50), torch.ones(7), 3 + 2 * torch.randn(4000)])
    job = JobInfo((("a.bias", 50), ("b.weight", 7), ("c.weight", 4000)), 9, Local(), True)
    one, again = (IFCA(3).prepare(job).new_server(theta0, 9)["models"] for _ in range(2))
    assert one.equal(again) and one[0].equal(theta0)
    for drawn in one[1:]:
        assert drawn[:50].eq(0).all() and drawn[50:57].eq(1).all()
        assert drawn[57:].mean().item() == pytest.approx(3, abs=0.15)
        assert drawn[57:].std().item() == pytest.approx(2, abs=0.15)
    assert abs(np.corrcoef(one[:, 57:].numpy())[np.triu_indices(3, 1)]).max() < 0.1
    flat = IFCA(2).prepare(job).new_server(torch.zeros(4057), 9)["models"]
    assert flat[1].std().item() == pytest.approx(0.01, rel=0.1)


def test_a_newcomer_chooses_by_its_own_data():
    problem = clustered(CENTRES, MEMBERS)
    module = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.5, 0.1, -0.4]]))
    local = pf.Local(lr=LR, batch_size=0, steps=STEPS)
    run = pf.train(problem.federation, module, IFCA(), rounds=30, local=local, progress=False, threads=1)
    assert set(run.clients().column("cluster").to_pylist()[-6:]) == {0.0, 1.0}
    for centre in CENTRES:
        x = np.random.default_rng(3).standard_normal((10, 3)).astype(np.float32)
        net = run.personalize(x, (x @ centre).astype(np.float32))
        np.testing.assert_allclose(net.weight[0].detach().numpy(), centre, atol=0.05)


def test_traffic_is_all_models_both_ways(tmp_path):
    runner = train(quadratics(), IFCA(3), tmp_path, rounds=2)
    assert runner.traffic == {"bytes_up": 2 * 4 * (3 * 3 + 3) * 4, "bytes_down": 2 * 4 * 3 * 3 * 4}


def test_bad_settings_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.clusters = 0: must be at least 1"):
        IFCA(0)
    with pytest.raises(
        ConfigError, match=r"algorithm\.clusters = 5: must be at most 4, the number of clients"
    ) as error:
        train(quadratics(), IFCA(5), tmp_path, rounds=1)
    assert "\n" not in str(error.value)
