"""Noise in shares: how much the sum has, and what ε is worth after rounding."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from personafl.training.accounting import epsilon
from personafl.training.distributed_noise import NoiseShare
from personafl.training.privacy import NoiseSource

pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_shares_add_up_whatever_the_weights(weight):
    shares = [weight * NoiseShare(5, weight, NoiseSource(k)).normal("ann", 1, 20_000) for k in range(5)]
    assert np.std(sum(shares)) == pytest.approx(1.0, abs=0.02)
    assert np.std(shares[0]) == pytest.approx(1 / math.sqrt(5), abs=0.02)


def delta_of(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    """The least δ for ε between two distributions on whole numbers."""
    return float(np.maximum(p - math.exp(eps) * q, 0).sum())


def rounded_sum(at: float, sigma: float, sharers: int, reach: int) -> np.ndarray:
    """The distribution of a sum of rounded normal numbers on −reach … reach, exactly: by adding them one by one."""
    edges = np.arange(-reach, reach + 2) - 0.5
    shares = [np.diff(norm.cdf(edges, mean, sigma / math.sqrt(sharers))) for mean in (at, *[0.0] * (sharers - 1))]
    total = shares[0]
    for share in shares[1:]:
        total = np.convolve(total, share, "same")
    return total


@pytest.mark.parametrize("z", [1.0, 4.0])
def test_epsilon_of_a_sum_of_rounded_shares_is_that_of_gaussian_noise(z):
    """By the exact distributions of one coordinate: with shares of 40 steps, δ at the promised ε is δ to 1%."""
    delta, sharers, sigma = 1e-3, 3, 70.0
    clip = sigma / z
    promised = epsilon(z, delta, 1)
    p, q = (rounded_sum(at, sigma, sharers, 1200) for at in (clip, -clip))
    assert p.sum() == pytest.approx(1) and delta_of(p, q, promised) == pytest.approx(delta, rel=0.01)
    assert delta_of(p, q, promised + 1e-3) < delta


def test_one_who_sees_a_single_answer_faces_its_share_alone():
    """What a site may count on that does not insist on sums."""
    assert epsilon(4.0 / math.sqrt(4), 1e-5, 1) > 2 * epsilon(4.0, 1e-5, 1)
