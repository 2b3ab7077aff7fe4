"""What a student minimizes: (1 − λ) CE(y, student) + λ T² D, for four D of teacher and student.

With the softmax p of the teacher's logits over T and q of the student's:

    kl             forward   KL(p ‖ q)          Algorithm 1 of the PersFL thesis
                   reverse   KL(q ‖ p)          as its equation (4.2) prints it
    cross-entropy  forward   − Σ p log q        the same gradient as KL(p ‖ q)
                   reverse   − Σ q log p        as its equation (6.1) prints it; another gradient than KL(q ‖ p)

The slope of T² D in the student's logits is T (q − p) forward, whichever of the two D is; reverse it is
T q (log q − log p − KL(q ‖ p)) for the divergence, and T q (− log p − CE(q, p)) for the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from personafl.tasks.classes import cross_entropy

Divergence = Literal["kl", "cross-entropy"]
Direction = Literal["forward", "reverse"]


def distillation(outputs: Tensor, y: Tensor, teacher: Tensor, imitation: Tensor, temperature: Tensor) -> Tensor:
    """(1 − λ) CE + λ T² KL(teacher ‖ student), for each sample."""
    soft = F.softmax(teacher / temperature, -1)
    entropy = -(soft * F.log_softmax(teacher / temperature, -1)).sum(-1)
    by_entropy = distillation_by_cross_entropy(outputs, y, teacher, imitation, temperature)
    return by_entropy - imitation * temperature**2 * entropy


def distillation_by_cross_entropy(
    outputs: Tensor, y: Tensor, teacher: Tensor, imitation: Tensor, temperature: Tensor
) -> Tensor:
    """(1 − λ) CE + λ T² CE(teacher, student), for each sample."""
    soft = F.softmax(teacher / temperature, -1)
    imitated = -(soft * F.log_softmax(outputs / temperature, -1)).sum(-1)
    return (1 - imitation) * cross_entropy(outputs, y) + imitation * temperature**2 * imitated


def reverse_distillation(outputs: Tensor, y: Tensor, teacher: Tensor, imitation: Tensor, temperature: Tensor) -> Tensor:
    """(1 − λ) CE + λ T² KL(student ‖ teacher), for each sample."""
    said = F.log_softmax(outputs / temperature, -1)
    by_entropy = reverse_distillation_by_cross_entropy(outputs, y, teacher, imitation, temperature)
    return by_entropy + imitation * temperature**2 * (said.exp() * said).sum(-1)


def reverse_distillation_by_cross_entropy(
    outputs: Tensor, y: Tensor, teacher: Tensor, imitation: Tensor, temperature: Tensor
) -> Tensor:
    """(1 − λ) CE + λ T² CE(student, teacher), for each sample."""
    soft = F.softmax(outputs / temperature, -1)
    imitated = -(soft * F.log_softmax(teacher / temperature, -1)).sum(-1)
    return (1 - imitation) * cross_entropy(outputs, y) + imitation * temperature**2 * imitated


OBJECTIVES: dict[tuple[Divergence, Direction], Callable[..., Tensor]] = {
    ("kl", "forward"): distillation,
    ("kl", "reverse"): reverse_distillation,
    ("cross-entropy", "forward"): distillation_by_cross_entropy,
    ("cross-entropy", "reverse"): reverse_distillation_by_cross_entropy,
}
