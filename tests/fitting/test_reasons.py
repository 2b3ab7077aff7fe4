"""Why a client got its model, in words: derived from weights that the choice itself made."""

import numpy as np
import pytest

from personafl.fitting.choice import Way, pruned, weights_of
from personafl.report.reasons import own_shares, reasons

LABELS = [{"label": "one model"}, {"label": "ditto"}, {"label": "alone"}]
NOBODY = "no validation samples of its own"
SAME = "as everybody: its own samples change little"


def samples(*clients):
    """For each client (n, model): n samples of which this model gives 0.9 to the right answer, the others 0.1."""
    rows, owner = [], []
    for k, (n, model) in enumerate(clients):
        rows += [[0.9 if f == model else 0.1 for f in range(3)]] * n
        owner += [k] * n
    return np.log(np.array(rows)), np.array(owner), [n for n, _ in clients]


def told(way, *clients):
    likelihood, owner, n = samples(*clients)
    weights = weights_of(way, likelihood, owner, len(n) + 1)
    alpha = way.alpha if np.isfinite(way.alpha) else None
    fitted = {"way": {"kind": way.kind, "alpha": alpha}, "newcomer": weights[-1].tolist(), "finalists": LABELS}
    return reasons(fitted, pruned(weights[:-1]), n)


def test_a_mixture_tells_who_was_moved_by_own_samples_and_who_had_too_few():
    clients = [(200, 0), (40, 1), (2, 1), (0, 0), (8, 2), (100, 1), (90, 2)]
    assert told(Way("mixture", alpha=30.0), *clients) == [
        "its own samples prefer one model for all", "its own samples prefer ditto",
        "as everybody: too few samples of its own", f"as everybody: {NOBODY}",
        "its own samples give more weight to training alone",
        "its own samples prefer ditto", "its own samples prefer training alone",
    ]  # fmt: skip
    assert told(Way("mixture", alpha=1.0), *[(40, 0)] * 3) == [SAME] * 3


def test_the_fewer_everybodys_samples_count_the_fewer_own_ones_move_a_client():
    words = [told(Way("mixture", alpha=alpha), (200, 0), (100, 2), (6, 2))[2] for alpha in (100.0, 30.0, 10.0, 1.0)]
    assert words == ["as everybody: too few samples of its own"] * 2 + ["its own samples prefer training alone"] * 2


@pytest.mark.parametrize("way", [Way("single", 0), Way("mixture")])
def test_where_everybody_gets_the_same_nobodys_own_samples_are_the_reason(way):
    assert set(told(way, (500, 0), (40, 1), (0, 0))) == {"as everybody: no choice by client was shown to be better"}


def test_one_model_each_is_that_of_a_newcomer_unless_own_samples_prefer_another():
    assert told(Way("one each"), (50, 0), (50, 0), (50, 0), (40, 1), (0, 0)) == [
        *["as for a newcomer: its own samples do not show another to be better"] * 3,
        "its own samples prefer ditto", f"as for a newcomer: {NOBODY}",
    ]  # fmt: skip


def test_shares_are_those_of_the_update_of_the_weights():
    """A client whose samples all speak for one model has that share as weight, and some of everybody's."""
    likelihood, owner, n = samples((100, 0), (40, 1))
    sure = np.where(likelihood > np.log(0.5), 0.0, -50.0)
    weights = weights_of(Way("mixture", alpha=30.0), sure, owner, 3)
    share = own_shares({"kind": "mixture", "alpha": 30.0}, n)[1]
    np.testing.assert_allclose(weights[1], (1 - share) * weights[-1] + share * np.array([0, 1, 0]), atol=1e-3)
    assert own_shares({"kind": "single", "alpha": None}, n) is own_shares({"kind": "mixture", "alpha": None}, n) is None
