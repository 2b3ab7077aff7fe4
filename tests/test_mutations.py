"""Breaking an algorithm on purpose makes one of its tests fail (the table: `python tests/mutations.py`)."""

from collections import Counter

import pytest

from personafl.algorithms import ALGORITHMS
from tests.mutations import AWAITED, MUTATIONS, RULES, SOURCE, apply, check, table


def test_every_algorithm_has_at_least_three_mutations_that_still_fit_its_file():
    count = Counter(mutation.algorithm for mutation in MUTATIONS)
    assert set(count) == set(ALGORITHMS) - AWAITED and min(count.values()) >= 3
    for mutation in (*MUTATIONS, *RULES):
        text = (SOURCE / "personafl" / mutation.path).read_text("utf-8")
        compile(apply(text, mutation), mutation.file, "exec")


@pytest.mark.slow
def test_every_mutation_is_caught():
    caught, broken = check((*MUTATIONS, *RULES))
    assert not broken, {test: outcome.output[-1000:] for test, outcome in broken.items()}
    assert all(caught.values()), table({m: test for m, test in caught.items() if not test})
