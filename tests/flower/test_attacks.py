"""Attacks by an operator who changes what is asked of a site, and what the site does about them."""

import numpy as np
import pytest
import torch

from personafl.errors import ConfigError
from tests.flower.asking import CLASSES, LOCAL, SIZE, Operator

# --- the noise is taken off ----------------------------------------------------------------------------------------


def test_two_runs_with_the_same_seed_and_another_clip_do_not_take_the_noise_off(tmp_path):
    """If both answers had the same noise N, y + zC·N and y + 2zC·N: twice the first minus the second is y."""
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    ann = Operator(tmp_path)
    exact = Operator(tmp_path / "plain").train(ann.job()).up["theta"]
    one, two = (
        ann.train(ann.job(privacy={"clip": clip, "noise": 3.0, "delta": 1e-5})).up["theta"] for clip in (10.0, 20.0)
    )
    error = (2 * one - two - exact).abs()
    assert float(error.median()) > 10, "the update was recovered"
    assert float((one - exact).std()) == pytest.approx(30, rel=0.4)


# --- training samples are read off ---------------------------------------------------------------------------------


def recovered(ann: Operator, local: dict, algorithm="fedavg") -> np.ndarray:
    """The sample behind one step of one sample: each class's row of the gradient is a multiple of it."""
    before = torch.zeros(CLASSES * SIZE + CLASSES)
    after = ann.train(ann.job(algorithm, local=local), before).up["theta"]
    rows, biases = (before - after).split([CLASSES * SIZE, CLASSES])
    k = int(biases.abs().argmax())
    return (rows.view(CLASSES, SIZE)[k] / biases[k]).numpy()


def test_the_attack_itself_reads_a_sample_off(tmp_path):
    """At a site that has given up its limits: the arithmetic of the attacks below is right."""
    ann = Operator(tmp_path, least_batch_size=1, least_samples=1)
    image = recovered(ann, {"lr": 0.1, "batch_size": 1, "steps": 1})
    assert min(np.abs(ann.data["train"][0] - image).max(1)) < 1e-6


@pytest.mark.parametrize("local", [{"lr": 0.1, "batch_size": 1, "steps": 1}])
def test_a_sample_is_not_read_off(tmp_path, local):
    with pytest.raises(ConfigError, match="least_batch_size"):
        recovered(Operator(tmp_path), local)


# --- evaluation as an oracle ---------------------------------------------------------------------------------------


ONE_UNIT = {"name": "mlp", "hidden": [1]}


def query(weights: np.ndarray, threshold: float, scale: float) -> torch.Tensor:
    """A model whose logit of class 0 is scale · max(w·x − threshold, 0), and that of the others 0."""
    first = [*(scale * weights), -scale * threshold]
    return torch.tensor([*first, 1.0, *[0.0] * (CLASSES - 1), *[0.0] * CLASSES], dtype=torch.float32)


def read_test_sample(ask) -> np.ndarray:
    """Find the one test sample that is furthest out in some direction, and read it off the sum of losses.

    `ask(theta)` is the sum of losses of a model. Below the threshold every sample costs the same; one that is above it
    by e, and not of class 0, costs scale · e more.
    """
    w, scale = np.linspace(-1, 1, SIZE), 1e4
    none = ask(query(w, 100.0, scale))

    def above(weights, threshold):
        return ask(query(weights, threshold, scale)) - none

    low, high = -float(SIZE), float(SIZE)
    for _ in range(40):  # the highest threshold that somebody is above
        middle = (low + high) / 2
        low, high = (middle, high) if above(w, middle) > 1 else (low, middle)
    threshold = low - 1e-3
    base = above(w, threshold)
    step = 1e-2
    return np.array([(above(w + step * np.eye(SIZE)[j], threshold) - base) / (scale * step) for j in range(SIZE)])


def distance(ann: Operator, image: np.ndarray) -> float:
    return float(np.abs(ann.data["test"][0] - image).max(1).min())
