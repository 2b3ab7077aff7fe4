"""Noise at the server: on the mean, as much as the heaviest client needs, the same on every engine; and its ε."""

import numpy as np
import pytest
import torch
from scipy import stats

from personafl.algorithms import ALGORITHMS, FedAvg, Mean
from personafl.algorithms.base import Uploads
from personafl.config import parse
from personafl.errors import ConfigError
from personafl.jobs import train_config
from personafl.report import report_data
from personafl.training.accounting import cohort_epsilon, composed_epsilon, epsilon
from personafl.training.privacy import NoiseSource, Privacy
from personafl.training.server_noise import ServerNoise
from tests.training.test_privacy import PRIVATE, SETTINGS, files

AT_SERVER = {"clip": 0.5, "noise": 0.25, "delta": 1e-4, "noise_at": "server"}


def uploads(values, samples, weights="samples", most=1.0):
    values, uplink = torch.tensor(values), {"theta": Mean(weights=weights, relative_to="theta")}
    return Uploads(torch.arange(len(values)), torch.tensor(samples), {"theta": values}, uplink, most=most)


def noise_of(privacy, uplink, clients, cohort=None):
    return ServerNoise(privacy, uplink, NoiseSource(0), cohort, np.zeros(clients))


@pytest.mark.parametrize(
    ("weights", "most", "heaviest"), [("equal", 1.0, 0.25), ("samples", 1.0, 0.7), ("samples", 0.4, 0.4)]
)
def test_the_noise_is_that_of_the_heaviest_clients_answer(weights, most, heaviest):
    """Kolmogorov-Smirnov over coordinates and rounds: standard deviation z C max p around the weighted mean."""
    draw = np.random.default_rng(0)
    values = draw.standard_normal((4, 2000)).astype(np.float32)
    up = uploads(values, [70, 10, 10, 10], weights, most)
    server = noise_of(Privacy(2.0, 3.0), up.uplink, 4)
    found = [server.noisy(up, round) for round in range(1, 11)]
    share = up.shares("theta").numpy()
    assert share.max() == pytest.approx(heaviest)
    noise = np.concatenate([one.mean("theta").double().numpy() - share @ values for one in found])
    assert stats.kstest(noise / (3.0 * 2.0 * heaviest), "norm").pvalue > 0.001
    assert all(len(one.values["theta"]) == 1 and len(one) == 4 for one in found)


def test_another_data_set_moves_the_mean_by_no_more_than_the_noise_is_made_for():
    """The heaviest client's answer goes from one end of its clip to the other: 2 C max p, and nobody's does more."""
    moved = []
    for k in range(3):
        ends = []
        for side in (1.0, -1.0):
            values = np.zeros((3, 2), np.float32)
            values[k, 0] = side * 0.5
            ends.append(uploads(values, [5, 3, 2]).mean("theta"))
        moved.append(float((ends[0] - ends[1]).norm()))
    np.testing.assert_allclose(moved, [2 * 0.5 * p for p in (0.5, 0.3, 0.2)], rtol=1e-6)


def test_a_lighter_client_is_protected_better():
    up = uploads(np.zeros((3, 2), np.float32), [5, 3, 2])
    server = noise_of(Privacy(1.0, 4.0), up.uplink, 4)
    for round in (1, 2):
        server.noisy(up, round)
    found = server.epsilon(np.arange(4), 2)
    expected = [composed_epsilon([4.0 * 0.5 / p] * 2, 1e-5) for p in (0.5, 0.3, 0.2)]
    np.testing.assert_allclose(found, [*expected, 0.0])
    assert found[0] == pytest.approx(epsilon(4.0, 1e-5, 2))


def test_epsilon_of_secret_cohorts_is_that_of_the_accountant_and_no_more_than_without_sampling():
    dp = pytest.importorskip("dp_accounting")
    accountant = dp.rdp.RdpAccountant(range(2, 40), neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(50, 5, dp.GaussianDpEvent(3.0)), 20)
    assert cohort_epsilon(6.0, 1e-5, 50, 5, 20) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-2)
    assert cohort_epsilon(6.0, 1e-5, 50, 5, 20) < epsilon(6.0, 1e-5, 20) == cohort_epsilon(6.0, 1e-5, 50, 50, 20)
    assert cohort_epsilon(6.0, 1e-5, 50, 49, 20) <= epsilon(6.0, 1e-5, 20)


def test_only_equal_weights_are_protected_by_sampling():
    """With sample weights another client in a place has another weight, and the bound does not hold."""
    for weights, of_all in (("equal", True), ("samples", False)):
        up = uploads(np.zeros((2, 2), np.float32), [5, 5], weights)
        server = noise_of(Privacy(1.0, 4.0), up.uplink, 20, cohort=2)
        server.noisy(up, 1)
        found = server.epsilon(np.arange(20), 1)
        assert (found[0] == cohort_epsilon(4.0, 1e-5, 20, 2, 1)) == of_all == (found[5] > 0)


def test_epsilon_is_no_less_than_an_attack_proves():
    """Tell two data sets of one client of three apart by the noisy mean: the error rates prove no more than ε."""
    privacy, means = Privacy(1.0, 2.0, delta=0.05), []
    for side in (1.0, -1.0):  # every coordinate is a trial of a model of one parameter
        up = uploads(np.outer([side, 0.0, 0.0], np.ones(20_000)).astype(np.float32), [1, 1, 1])
        server = ServerNoise(privacy, up.uplink, NoiseSource(int(side > 0)), None, np.zeros(3))
        means.append(server.noisy(up, 1).mean("theta").numpy())
    hit, false_alarm = (np.mean(one > 0.5 / 3) for one in means)
    proven = np.log((hit - privacy.delta) / false_alarm)
    assert 0.5 * epsilon(2.0, 0.05, 1) < proven < epsilon(2.0, 0.05, 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "run"
    return train_config(parse({**SETTINGS, "privacy": AT_SERVER}), folder)


def test_a_run_tells_epsilon_and_is_resumed_with_the_same(finished, tmp_path):
    assert finished.manifest["privacy"] == AT_SERVER
    settings = {**SETTINGS, "privacy": AT_SERVER}
    train_config(parse({**settings, "rounds": 2}), tmp_path / "run")
    resumed = train_config(parse(settings), tmp_path / "run", resume=True)
    assert files(resumed) == files(finished)
    spent = finished.clients().column("epsilon").to_numpy()
    active = finished.clients().column("activations").to_numpy()
    most = np.array([epsilon(0.25, 1e-4, int(k)) for k in active])
    assert (spent <= most * (1 + 1e-9)).all() and (spent[active > 0] > 0).all()
    (fact,) = [f["value"] for f in report_data([finished.path])["facts"] if f["name"] == "privacy"]
    assert fact.startswith("clip = 0.5, noise = 0.25 at the server: ε = ")


def test_equal_weights_and_secret_cohorts_give_everybody_the_same_epsilon(tmp_path):
    settings = {**SETTINGS, "privacy": AT_SERVER, "algorithm": {"name": "fedavg", "weights": "equal"}}
    found = train_config(parse(settings), tmp_path / "run").clients().column("epsilon").to_numpy()
    np.testing.assert_allclose(found, cohort_epsilon(0.25, 1e-4, 6, 3, 4))


@pytest.mark.parametrize("engine", ["loop", "threaded"])
def test_engines_agree(finished, tmp_path, engine):
    settings = {**SETTINGS, "privacy": AT_SERVER, "engine": {"name": engine, "threads": 2}}
    run = train_config(parse(settings), tmp_path / "run")
    ours, theirs = (dict(one.global_model().named_parameters()) for one in (run, finished))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-4)
    assert run.clients().column("epsilon").equals(finished.clients().column("epsilon"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_noise_at_the_server_is_for_means(name):
    kind = ALGORITHMS[name]()
    means = all(isinstance(how, Mean) for how in kind.uplink.values())
    if means and name in PRIVATE:
        Privacy(1.0, 1.0, noise_at="server").check(kind)
        return
    with pytest.raises(ConfigError, match=rf"\[privacy\] cannot be combined with {name}: ") as refused:
        Privacy(1.0, 1.0, noise_at="server").check(kind)
    assert "\n" not in str(refused.value)
    if name in PRIVATE:
        assert 'noise_at = "clients" does' in str(refused.value)


def test_a_place_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"privacy.noise_at = 'site'"):
        parse({**SETTINGS, "privacy": {**AT_SERVER, "noise_at": "site"}})
    assert Privacy(1.0).table() == {"clip": 1.0, "noise": 0.0, "delta": 1e-5}, "as run folders have had it"
    assert FedAvg().uplink["theta"].weights == "samples"
