"""Into vmap and out of it: the same by torch's primitives and by its public functions."""

import pytest
import torch

from personafl.engines import vmap
from personafl.engines.vmap import outside_vmap, over_clients


@pytest.fixture(params=[True, False], ids=["primitives", "public"])
def way(request, monkeypatch):
    assert vmap.FAST, "this torch lacks the primitives of the fast path"
    monkeypatch.setattr(vmap, "FAST", request.param)


def test_a_function_of_one_client_for_all(way):
    own, sent = {"a": torch.arange(6.0).view(3, 2)}, {"b": torch.tensor([1.0, 10.0, 100.0])}
    (sums, rest) = over_clients(lambda o, s: ({"sum": o["a"].sum() * s["b"]}, {"same": torch.ones(2)}), 3, own, sent)
    assert sums["sum"].tolist() == [1.0, 50.0, 900.0]
    assert rest["same"].tolist() == [[1.0, 1.0]] * 3  # what does not depend on the client has a row for each, too


def test_clients_without_a_state(way):
    assert over_clients(lambda own: ({"n": torch.tensor(7)},), 4, {})[0]["n"].tolist() == [7] * 4


def test_all_rows_are_seen_outside_and_can_be_changed_in_place(way):
    theta, shared = torch.arange(6.0).view(3, 2), torch.tensor([1.0, 2.0])
    shapes = []

    def less_its_mean(rows: torch.Tensor, plus: torch.Tensor) -> torch.Tensor:
        shapes.append((tuple(rows.shape), tuple(plus.shape)))
        return rows.sub_(rows.mean(0)).add_(plus)

    def one(row: dict, carry: dict) -> tuple[dict]:
        outside_vmap(less_its_mean, row["number"], carry["theta"], plus=shared)
        return (carry,)

    with torch.no_grad():
        (carry,) = over_clients(one, 3, {"number": torch.arange(3)}, {"theta": theta})
    assert shapes == [((3, 2), (3, 2))]
    assert carry["theta"].tolist() == [[-1.0, 0.0], [1.0, 2.0], [3.0, 4.0]]
