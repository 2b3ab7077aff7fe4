"""PersFL's losses and their slopes: values by torch and scipy, slopes as derived by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import entr, kl_div, log_softmax, softmax

from personafl.algorithms.distillation import OBJECTIVES, distillation, distillation_by_cross_entropy

cases = given(seed=st.integers(0, 10**6), lam=st.floats(0, 1), T=st.floats(0.2, 30))


def logits(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a student and a teacher, and labels."""
    draw = torch.Generator().manual_seed(seed)
    student = 4 * torch.randn(6, 5, generator=draw, dtype=torch.float64)
    teacher = 4 * torch.randn(6, 5, generator=draw, dtype=torch.float64)
    return student, teacher, torch.randint(0, 5, (6,), generator=draw)


def settings_of(lam: float, T: float) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in (("imitation", lam), ("temperature", T))}


@settings(max_examples=60, deadline=None)
@cases
def test_gradients_of_persfl_and_persfl_gd_are_equal_and_the_divergence_is_kl(seed, lam, T):
    student, teacher, y = logits(seed)
    p, log_p = F.softmax(teacher / T, 1), F.log_softmax(student / T, 1)
    kl = F.kl_div(log_p, p, reduction="none").sum(1)
    target = softmax(teacher.numpy() / T, axis=1)
    slope = (1 - lam) * (softmax(student.numpy(), axis=1) - np.eye(5)[y])
    slope += lam * T * (softmax(student.numpy() / T, axis=1) - target)
    for function, constant in ((distillation, 0.0), (distillation_by_cross_entropy, entr(target).sum(1))):
        at = student.clone().requires_grad_()
        values = function(at, y, teacher, **settings_of(lam, T))
        expected = (1 - lam) * F.cross_entropy(student, y, reduction="none") + lam * T**2 * (
            kl + torch.as_tensor(constant)
        )
        np.testing.assert_allclose(values.detach(), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(torch.autograd.grad(values.sum(), at)[0], slope, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@cases
def test_the_reverse_divergences_and_their_slopes_by_hand(seed, lam, T):
    """∂q_c/∂z_k = q_c (1{c = k} − q_k)/T for the student: the slope of Σ q_c h_c at fixed h is q (h − Σ q h)/T.

    The divergence has h = log q − log p, whose own slope sums to 0 over q; the cross-entropy has h = − log p.
    """
    student, teacher, y = logits(seed)
    q, p = softmax(student.numpy() / T, axis=1), softmax(teacher.numpy() / T, axis=1)
    log_q, log_p = log_softmax(student.numpy() / T, axis=1), log_softmax(teacher.numpy() / T, axis=1)
    hard = (1 - lam) * F.cross_entropy(student, y, reduction="none").numpy()
    hard_slope = (1 - lam) * (softmax(student.numpy(), axis=1) - np.eye(5)[y])
    for kind, h, apart in (("kl", log_q - log_p, kl_div(q, p).sum(1)), ("cross-entropy", -log_p, -(q * log_p).sum(1))):
        at = student.clone().requires_grad_()
        values = OBJECTIVES[kind, "reverse"](at, y, teacher, **settings_of(lam, T))
        np.testing.assert_allclose(values.detach(), hard + lam * T**2 * apart, rtol=1e-9, atol=1e-9)
        slope = hard_slope + lam * T * q * (h - (q * h).sum(1, keepdims=True))
        np.testing.assert_allclose(torch.autograd.grad(values.sum(), at)[0], slope, rtol=1e-8, atol=1e-8)


def test_directions_by_hand():
    """T = 1, p = (3/4, 1/4), q = (1/2, 1/2).

    KL(p ‖ q) = .130812 and KL(q ‖ p) = .143841; −Σ p log q = .693147 and −Σ q log p = .836988.
    """
    student, teacher = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()
    expected = {
        ("kl", "forward"): 0.130812, ("kl", "reverse"): 0.143841,
        ("cross-entropy", "forward"): 0.693147, ("cross-entropy", "reverse"): 0.836988,
    }  # fmt: skip
    for which, value in expected.items():
        found = OBJECTIVES[which](student, torch.tensor([0]), teacher, torch.tensor(1.0), torch.tensor(1.0))
        assert float(found) == pytest.approx(value, abs=1e-5)


def test_a_teacher_that_is_certain_leaves_the_reverse_finite():
    student = torch.tensor([[300.0, -300.0]], requires_grad=True)
    teacher = torch.tensor([[-300.0, 300.0]])
    for kind in ("kl", "cross-entropy"):
        value = OBJECTIVES[kind, "reverse"](student, torch.tensor([1]), teacher, torch.tensor(1.0), torch.tensor(1.0))
        assert float(value.detach()) == pytest.approx(600.0)
        assert torch.isfinite(torch.autograd.grad(value.sum(), student)[0]).all()
