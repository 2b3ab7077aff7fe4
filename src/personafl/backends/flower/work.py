"""How much work a site's steps were: the server counts it itself, and need not believe anybody."""

from __future__ import annotations

from personafl.algorithms import Algorithm
from personafl.algorithms.dry_run import first_step
from personafl.settings import Local
from personafl.states import State


def gradients_per_step(algorithm: Algorithm, local: Local, own: State, sent: State) -> int:
    """How many gradients a step of local training computes, by taking one; no data is looked at."""
    return first_step(algorithm, local, own, sent)[1]
