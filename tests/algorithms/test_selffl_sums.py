"""Self-FL by sums: the numbers of a plain round, from sums alone."""

import numpy as np
import pytest
import torch

from personafl.algorithms import Mean, SelfFL, SelfFLAug
from personafl.algorithms.base import Uploads
from personafl.algorithms.selffl_sums import (
    add_up,
    between_sums,
    estimate,
    first_terms,
    second_terms,
    total_precision,
)
from personafl.config import parse
from personafl.errors import ConfigError
from personafl.jobs import train_config
from tests.backends.flower.problem import SETTINGS, federation, loop_states, server_state


def models(count, size, seed, known):
    torch.manual_seed(seed)
    theta, sent = torch.randn(count, size).double(), torch.randn(size).double()
    sigma2 = torch.rand(count).double() + 0.01
    sigma2[known:] = -1.0
    return theta, sent, sigma2


@pytest.mark.parametrize("variance", ["sum", "mean"])
@pytest.mark.parametrize("known", [0, 1, 8])
def test_the_prior_weighs_as_much_in_sums(variance, known):
    theta, sent, sigma2 = models(8, 30, known, known)
    both = []
    for sums in (False, True):
        algorithm = SelfFL(variance=variance, unknown="mean", smoothing=0.5, prior=0.02, sums=sums)
        server = algorithm.new_server(sent.float(), 8) | {"theta": 2 * sent.float()}
        values = {"theta": theta.float(), "sigma2": sigma2.float()}
        uploads = Uploads(torch.arange(8), torch.ones(8), values, algorithm.uplink)
        both.append(algorithm.aggregate(server, uploads)["theta"])
    torch.testing.assert_close(*both, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("variance", ["sum", "mean"])
@pytest.mark.parametrize("use_weights", [True, False])
@pytest.mark.parametrize("known", [0, 1, 5, 8])
def test_two_sums_are_the_plain_server_in_double(variance, use_weights, known):
    """By the plain server of `SelfFL`, which sees every model."""
    theta, sent, sigma2 = models(8, 30, known, known)
    plain = SelfFL(variance=variance, use_weights=use_weights, unknown="mean", smoothing=0.5)
    server = {**plain.new_server(sent, 8), "sigma2": torch.full((8,), -1.0).double()}
    uploads = Uploads(torch.arange(8), torch.ones(8), {"theta": theta, "sigma2": sigma2}, plain.uplink)
    expected = plain.aggregate(server, uploads)
    precision = plain._precision(expected, plain._filled(sigma2))

    rows = first_terms(theta, sent, sigma2)
    first = add_up(rows)
    told = between_sums(first, variance)
    second = add_up(second_terms(rows, told, use_weights))
    torch.testing.assert_close(told["sigma0_2"], expected["sigma0_2"], rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.lerp(sent, estimate(sent, second), 0.5), expected["theta"], rtol=0, atol=1e-13)
    torch.testing.assert_close(total_precision(told, second), precision.sum(), rtol=1e-9, atol=0)


def test_what_is_left_of_the_total_is_the_sum_over_the_others():
    """S_m as the plain server sends it."""
    theta, sent, sigma2 = models(6, 10, 1, 6)
    both = []
    for sums in (False, True):
        algorithm = SelfFL(unknown="mean", sums=sums, prior=0.3)
        server = algorithm.new_server(sent.float(), 6)
        values = {"theta": theta.float(), "sigma2": sigma2.float()}
        server = algorithm.aggregate(server, Uploads(torch.arange(6), torch.ones(6), values, algorithm.uplink))
        message = algorithm.send(server, torch.arange(6))
        own = [{"sigma2": sigma2[m].float(), "t": torch.tensor(3.0)} for m in range(6)]
        both.append(torch.stack([algorithm._others(own[m], message.one(m)) for m in range(6)]))
    torch.testing.assert_close(*both, rtol=1e-6, atol=0)


def test_who_was_not_among_those_who_answered_takes_the_whole_total():
    algorithm = SelfFL(sums=True)
    server = algorithm.new_server(torch.zeros(4), 3)
    values = {"theta": torch.randn(2, 4), "sigma2": torch.tensor([0.5, 0.7])}
    server = algorithm.aggregate(server, Uploads(torch.tensor([0, 2]), torch.ones(2), values, algorithm.uplink))
    sent = algorithm.send(server, torch.arange(3))
    assert sent.each["mine"].tolist() == [1, 0, 1]
    own = {"sigma2": torch.tensor(0.1), "t": torch.tensor(2.0)}
    assert float(algorithm._others(own, sent.one(1))) == pytest.approx(float(server["total"]), rel=1e-6)


def test_sums_that_come_from_elsewhere_are_taken_as_they_are():
    theta, sent, sigma2 = models(5, 7, 2, 3)
    algorithm = SelfFL(sums=True)
    server = algorithm.new_server(sent.float(), 5)
    values = {"theta": theta.float(), "sigma2": sigma2.float()}
    here = algorithm.aggregate(server, Uploads(torch.arange(5), torch.ones(5), values, algorithm.uplink))
    rows = algorithm.first_sums(values, {"theta": sent.float()})
    sums = add_up(rows)
    sums |= add_up(algorithm.second_sums(rows, algorithm.tell(sums)))
    summed = Uploads(torch.arange(5), torch.ones(5), sums, {"x": Mean()}, torch.tensor([[5.0, 5.0]]))
    elsewhere = algorithm.aggregate(server, summed)
    assert all(torch.equal(here[name], elsewhere[name]) for name in here)


@pytest.mark.parametrize("options", [{}, {"gradient": "sum", "rate": "solved", "sigma": "fisher", "prior": 0.1}])
def test_a_whole_run_by_sums_is_the_plain_run(tmp_path, options):
    """Everybody active, and unknown variances filled by the mean: the same but for single precision."""
    runs = []
    for sums in (False, True):
        table = {"name": "selffl", "unknown": "mean", "sums": sums, **options}
        tables = {**SETTINGS, "rounds": 6, "algorithm": table, "engine": "loop", "checkpoint_every": 1}
        runs.append(train_config(parse(tables), tmp_path / str(sums), federation=federation()))
    plain, ours = (server_state(run) for run in runs)
    torch.testing.assert_close(ours["server.theta"], plain["server.theta"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours["server.sigma0_2"], plain["server.sigma0_2"], rtol=1e-4, atol=0)
    steps = [[row["steps"] for row in run.clients().to_pylist()] for run in runs]
    assert steps[0] == steps[1] and len(np.unique(steps[0])) >= 1
    for client, state in loop_states(runs[0]).items():
        torch.testing.assert_close(loop_states(runs[1])[client]["theta"], state["theta"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "other", [{"clusters": "group"}, {"warm_rounds": 1}, {"smoothing": "adaptive"}, {"scope": "all"}]
)
def test_what_is_no_sum_is_refused(other):
    with pytest.raises(ConfigError, match=r"algorithm\.sums = True: must be false, or without clusters"):
        SelfFL(sums=True, **other)
    with pytest.raises(ConfigError, match="not its augmented form"):
        SelfFLAug(sums=True)
