"""Which settings of a run can be combined: the one place that says so, for configs, Python and federations."""

from __future__ import annotations

from personafl.algorithms.base import Algorithm
from personafl.training.privacy import Privacy
from personafl.training.robust import Robust


def check_combination(algorithm: Algorithm, privacy: Privacy | None = None, robust: Robust | None = None) -> None:
    """Raise a ConfigError, with the reason, where what clients or the server do to answers does not fit the algorithm.

    Privacy and robust rules go together: clients add noise, the server sees noisy answers one by one. What hides
    single answers from the server does not go together with a robust rule.
    """
    if privacy is not None:
        privacy.check(algorithm)
    if robust is not None:
        robust.check(algorithm)
