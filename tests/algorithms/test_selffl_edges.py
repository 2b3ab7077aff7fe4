"""Self-FL where floating point ends."""

import pytest
import torch

import personafl as pf
from personafl.algorithms import SelfFL
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
