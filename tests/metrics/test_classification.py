"""Macro precision, recall and F1 against scikit-learn."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support

from personafl import metrics
from personafl.errors import DataError
from personafl.metrics import inputs

SAMPLES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def reference(labels, predictions):
    if len(labels) == 0:
        return (np.nan,) * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return precision_recall_fscore_support(labels, predictions, average="macro", zero_division=0)[:3]


@settings(max_examples=30, deadline=None)
@given(st.lists(SAMPLES, min_size=1, max_size=6))
def test_each_client_and_all_together_are_scikit_learns(clients):
    y, guess = np.array([pair for client in clients for pair in client], int).reshape(-1, 2).T
    assert metrics.macro_scores(y, guess) == pytest.approx(reference(y, guess), nan_ok=True)
    found = metrics.client_macro_scores(y, guess, [len(client) for client in clients])
    for m, client in enumerate(clients):
        expected = reference([pair[0] for pair in client], [pair[1] for pair in client])
        assert [score[m] for score in found] == pytest.approx(expected, nan_ok=True)


def test_blocks_of_clients_change_nothing(monkeypatch):
    draw = np.random.default_rng(0)
    sizes = draw.integers(0, 9, 200)
    y, guess = draw.integers(0, 7, (2, sizes.sum()))
    whole = metrics.client_macro_scores(y, guess, sizes)
    monkeypatch.setattr(inputs, "CELLS_AT_ONCE", 50)
    np.testing.assert_array_equal(np.array(whole), np.array(metrics.client_macro_scores(y, guess, sizes)))


def test_classes_may_have_any_number():
    """A class called a billion takes no more room than one called 1."""
    assert metrics.macro_scores([0, 10**9], [0, 10**9]).f1 == 1.0


def test_macro_f1_is_the_mean_of_f1_not_the_f1_of_means():
    found = metrics.macro_scores([0, 0, 0, 1], [0, 1, 1, 1])
    assert found == pytest.approx(((1 + 1 / 3) / 2, (1 / 3 + 1) / 2, 0.5))
    assert 2 * found.precision * found.recall / (found.precision + found.recall) == pytest.approx(2 / 3)


def test_what_is_wrong_is_named():
    with pytest.raises(DataError, match="sizes add up to 3 and there are 2 samples"):
        metrics.client_macro_scores([0, 1], [0, 1], [3])
    with pytest.raises(DataError, match="whole numbers"):
        metrics.macro_scores([0.5], [0])
    with pytest.raises(DataError, match="sizes must be whole numbers"):
        metrics.client_macro_scores([0, 1], [0, 1], [3, -1])
