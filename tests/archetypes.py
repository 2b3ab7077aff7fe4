"""Algorithms that stand for all others where a test is about what carries them: Ray, Flower, devices, evaluation.

`make test` runs such a test with these five, `make test-slow` with all others. What an algorithm itself does is tested
with every algorithm in `make test`: tests/algorithms, and the engines against each other in tests/engines.
"""

from collections.abc import Collection, Iterable

import pytest

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.extras import ForSomeModels

FOR_ANY_MODEL = [name for name, kind in ALGORITHMS.items() if not issubclass(kind, ForSomeModels)]
FOR_TWO_LAYERS = [name for name in ALGORITHMS if name != "fedbn"]
"""Algorithms for a classifier of two linear layers: all but those that ask for normalization."""

ARCHETYPES = {
    "fedavg": "one model for all, a mean of what is sent",
    "selffl": "the server sends each client its own model; clients choose their steps; no mean on the way",
    "fedamp": "the server mixes the clients' models, pair by pair",
    "persfl": "clients keep a state, and train once more before they are evaluated",
    "fedper": "a part of the model never leaves its client",
}
"""And what each of them has that the others have not."""

SHORT_GRID = {"temperatures": (1.0, 5.0), "imitations": (0.0, 0.5), "distill_epochs": 2}
"""PersFL's second stage with 4 students in place of 15, where a test is not about their number."""


def archetypes(names: Iterable[str] = FOR_ANY_MODEL, besides: Collection[str] = ()) -> list:
    """Values for `parametrize`: all these algorithms, those that are no archetypes marked as slow.

    Parameters
    ----------
    names
        Algorithms, by name.
    besides
        More names that the ordinary tests take.
    """
    return some_quick(names, {*ARCHETYPES, *besides})


def some_quick(names: Iterable[str], quick: Collection[str]) -> list:
    """Values for `parametrize`: all these names, those that are not among the quick ones marked as slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]
