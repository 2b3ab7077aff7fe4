"""FML against plain torch in float64, and against fedavg and training alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from personafl.algorithms import FML, FedAvg, Separate
from personafl.engines import ENGINES
from personafl.errors import ConfigError
from personafl.federation import Federation
from personafl.kernels.task import Task
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.runner import Runner
from tests.oracles.quadratic import personal, quadratics, server, train

LR, STEPS, ROUNDS, SIZES = 0.3, 3, 3, (6, 12, 9)


def data(m):
    draw = np.random.default_rng(m)
    return draw.normal(0.3 * m, 1, (SIZES[m], 4)).astype(np.float32), draw.integers(0, 3, SIZES[m])


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def runner(algorithm, folder, rounds=ROUNDS, activity=1.0, engine="stacked"):
    fed = Federation.from_clients({f"c{m}": {"train": data(m)} for m in range(3)}, classes=3)
    made = ENGINES[engine](Task(model()), fed, Local(lr=LR, batch_size=0, steps=STEPS), seed=0, threads=1)
    schedule = Schedule(rounds=10**6, activity=activity, eval_every=0)
    run = Runner(algorithm, LocalClients(made), schedule, RunFolder(folder), {})
    for _ in range(rounds):
        run.step()
    return run


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def copied(theta):
    net = model().double()
    torch.nn.utils.vector_to_parameters(theta.clone(), net.parameters())
    return net


def by_hand(alpha, beta, weighted):
    """w and all v: two modules, two losses, each with the other's probabilities as they were before the step."""
    p = torch.tensor(SIZES if weighted else (1, 1, 1)).double()
    w = flat(model().double())
    v = [w.clone() for _ in SIZES]
    for _ in range(ROUNDS):
        memes = []
        for m in range(3):
            x, y = torch.tensor(data(m)[0]).double(), torch.tensor(data(m)[1])
            private, meme = copied(v[m]), copied(w)
            for _ in range(STEPS):
                ours, theirs = private(x), meme(x)
                p_private, p_meme = (F.softmax(out, 1).detach() for out in (ours, theirs))
                kl_private = (p_meme * (p_meme.log() - F.log_softmax(ours, 1))).sum(1).mean()
                kl_meme = (p_private * (p_private.log() - F.log_softmax(theirs, 1))).sum(1).mean()
                losses = {
                    private: alpha * F.cross_entropy(ours, y) + (1 - alpha) * kl_private,
                    meme: beta * F.cross_entropy(theirs, y) + (1 - beta) * kl_meme,
                }
                for net, loss in losses.items():
                    for q, slope in zip(
                        net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
                    ):
                        q.data -= LR * slope
            v[m] = flat(private)
            memes.append(flat(meme))
        w = (p / p.sum()) @ torch.stack(memes)
    return w.numpy(), torch.stack(v).numpy()


@pytest.mark.parametrize(
    "alpha, beta, weights, engine", [(0.7, 0.2, "samples", "stacked"), (0.1, 0.9, "equal", "loop")]
)
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, alpha, beta, weights, engine):
    run = runner(FML(alpha, beta, weights), tmp_path, engine=engine)
    w, v = by_hand(alpha, beta, weights == "samples")
    np.testing.assert_allclose(server(run), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(personal(run), v, rtol=1e-4, atol=1e-5)
    assert np.abs(v - w).max() > 0.05


def test_without_the_other_model_it_is_training_alone_beside_fedavg(tmp_path):
    ours = runner(FML(alpha=1.0, beta=1.0), tmp_path / "a")
    np.testing.assert_allclose(server(ours), server(runner(FedAvg(), tmp_path / "b")), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(personal(ours), personal(runner(Separate(), tmp_path / "c")), rtol=1e-5, atol=1e-6)


def test_who_was_never_active_has_the_model_that_goes_round(tmp_path):
    run = runner(FML(), tmp_path, rounds=1, activity=0.34)
    idle = run.active == 0
    assert idle.sum() == 2
    np.testing.assert_array_equal(personal(run)[idle], np.tile(server(run), (2, 1)))
    assert np.abs(personal(run)[~idle] - server(run)).max() == 0  # at first both models are the same, and stay so


@pytest.mark.parametrize("key", ["alpha", "beta"])
def test_shares_are_in_range(key):
    with pytest.raises(ConfigError, match=rf"algorithm\.{key} = 1\.5: must be in \[0, 1\]"):
        FML(**{key: 1.5})


def test_without_classes_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="fml compares class probabilities: it needs a classification task") as error:
        train(quadratics(), FML(), tmp_path, rounds=1)
    assert "\n" not in str(error.value)
