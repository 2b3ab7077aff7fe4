"""Self-FL where floating point ends."""

import pytest
import torch

import personafl as pf
from personafl.algorithms import SelfFL, Uploads
from personafl.errors import ConfigError, TrainingFailed
from tests.oracles.quadratic import quadratics, train


def test_one_far_more_precise_client_does_not_hide_the_others():
    """σ0² = 0 and σ² = (0, 1e6): S_1 is 1e-6, sixteen orders below the client's own weight."""
    algorithm = SelfFL()
    server = algorithm.new_server(torch.zeros(3), clients=2)
    server |= {"sigma0_2": torch.tensor(0.0), "sigma2": torch.tensor([0.0, 1e6])}
    others = algorithm.send(server, torch.tensor([0, 1])).each["S"]
    assert others[0] == pytest.approx(1e-6)
    assert others[1] == pytest.approx(1e12)


def test_models_beyond_float32_stop_the_run(tmp_path):
    runner = train(quadratics(), SelfFL(), tmp_path, rounds=0, lr=1e-12, steps=1)
    runner.server["theta"] = torch.full((3,), 3e38)
    with pytest.raises(TrainingFailed, match=r"A smaller local\.lr usually helps"):
        runner.step()


@pytest.mark.parametrize("wrong", [{"posterior": "typo"}, {"smoothing": "fast"}])
def test_unknown_words_are_refused_from_python_too(wrong):
    with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(wrong))}"):
        pf.train(quadratics().federation, torch.nn.Linear(3, 1), SelfFL(**wrong), rounds=1, progress=False)


@pytest.mark.parametrize(("spread", "away"), [(1.0, 3.0), (3.0, 0.5), (0.0, 1.0)])
def test_adaptive_smoothing_shrinks_by_noise_over_signal(spread, away):
    """Two of four clients at ±spread around a point that is `away` from the global model, along other axes."""
    algorithm = SelfFL(smoothing="adaptive", use_weights=False)
    server = algorithm.new_server(torch.zeros(2), clients=4)
    theta = torch.tensor([[away, spread], [away, -spread]])
    values = {"theta": theta, "sigma2": torch.tensor([-1.0, -1.0])}
    uploads = Uploads(torch.tensor([0, 1]), torch.ones(2), values, algorithm.uplink)
    moved = algorithm.aggregate(server, uploads)["theta"]
    # Var of the mean of 2 of 4 clients: (1 − 1/2) Σ (1/2)² spread²; the signal is away².
    noise = 0.5 * 2 * 0.25 * spread**2
    share = min(max(1 - noise / away**2, 0.5), 1.0)
    torch.testing.assert_close(moved, torch.tensor([share * away, 0.0]))


def test_adaptive_smoothing_is_no_smoothing_when_everybody_takes_part(tmp_path):
    one = train(quadratics(), SelfFL(smoothing="adaptive"), tmp_path, rounds=4)
    two = train(quadratics(), SelfFL(smoothing=1.0), tmp_path, rounds=4)
    assert torch.equal(one.server["theta"], two.server["theta"])
