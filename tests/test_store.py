"""The client store behaves like a dictionary with a default, whatever the order of things."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.store import ClientStore

CLIENTS = 30


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def default_state() -> dict[str, torch.Tensor]:
    return {"theta": torch.tensor([1.0, 2.0]), "count": torch.tensor(7), "memory": torch.zeros(2, 3)}


def state_of(values: list[int]) -> dict[str, torch.Tensor]:
    """A recognizable state for each value."""
    v = torch.tensor(values, dtype=torch.int64)
    return {
        "theta": v[:, None].float().expand(-1, 2) + torch.tensor([0.0, 0.5]),
        "count": v.clone(),
        "memory": v.float().view(-1, 1, 1).expand(-1, 2, 3).clone(),
    }


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def expected_of(model: dict[int, int], wanted: list[int]) -> dict[str, torch.Tensor]:
    rows = [{n: v[0] for n, v in state_of([model[c]]).items()} if c in model else default_state() for c in wanted]
    return {name: torch.stack([row[name] for row in rows]) for name in default_state()}


distinct = st.lists(st.integers(0, CLIENTS - 1), unique=True, min_size=1, max_size=12)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), distinct),
        st.tuples(st.just("get"), st.lists(st.integers(0, CLIENTS - 1), max_size=12)),
        st.tuples(st.just("resume"), st.just([])),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(actions)
def test_the_store_is_a_dictionary_with_a_default(steps):
    store, model = ClientStore(default_state(), CLIENTS), {}
    value = 100
    for action, clients in steps:
        if action == "put":
            values = list(range(value, value + len(clients)))
            value += len(clients)
            store.put(ids(*clients), state_of(values))
            model.update(zip(clients, values, strict=True))
        elif action == "get" and clients:
            assert_same(store.get(ids(*clients)), expected_of(model, clients))
        elif action == "resume":
            saved = {name: tensor.clone() for name, tensor in store.state().items()}
            store = ClientStore(default_state(), CLIENTS)
            store.restore(saved)
        assert store.rows_used == len(model)
    everybody = list(range(CLIENTS))
    assert_same(store.get(ids(*everybody)), expected_of(model, everybody))


def test_nobody_is_asked_for():
    store = ClientStore(default_state(), CLIENTS)
    assert store.get(ids())["memory"].shape == (0, 2, 3)
    store.put(ids(), state_of([]))
    assert store.rows_used == 0


def test_only_active_clients_take_room():
    store = ClientStore({"theta": torch.zeros(1000)}, clients=1_000_000)
    store.put(ids(999_999, 5), {"theta": torch.ones(2, 1000)})
    assert store.rows_used == 2
    assert sum(rows.numel() for rows in store.rows.values()) < 10_000
    assert store.state()["rows.theta"].shape == (2, 1000)


def test_growth_one_by_one_keeps_everything_and_never_exceeds_the_clients():
    store = ClientStore(default_state(), CLIENTS)
    order = np.random.default_rng(0).permutation(CLIENTS).tolist()
    for turn, client in enumerate(order):
        store.put(ids(client), state_of([client]))
        seen = order[: turn + 1]
        assert_same(store.get(ids(*seen)), state_of(seen))
    assert all(len(rows) == CLIENTS for rows in store.rows.values())


def test_what_comes_out_is_a_copy():
    store = ClientStore(default_state(), CLIENTS)
    store.put(ids(3), state_of([8]))
    for clients in (ids(3), ids(4), ids(3, 4)):
        for value in store.get(clients).values():
            value.fill_(-1)
    assert_same(store.get(ids(3, 4)), expected_of({3: 8}, [3, 4]))


def test_what_goes_in_is_copied():
    default = default_state()
    store, state = ClientStore(default, CLIENTS), state_of([8])
    store.put(ids(3), state)
    for value in (*state.values(), *default.values()):
        value.fill_(-1)
    assert_same(store.get(ids(3, 4)), expected_of({3: 8}, [3, 4]))


def test_a_restored_store_is_apart_from_what_it_was_restored_from():
    store = ClientStore(default_state(), CLIENTS)
    store.put(ids(3, 1), state_of([8, 9]))
    saved = store.state()
    other = ClientStore(default_state(), CLIENTS)
    other.restore(saved)
    other.put(ids(3, 2), state_of([50, 51]))
    assert_same(store.get(ids(3, 2, 1)), expected_of({3: 8, 1: 9}, [3, 2, 1]))
    assert_same(other.get(ids(3, 2, 1)), expected_of({3: 50, 2: 51, 1: 9}, [3, 2, 1]))


def test_algorithms_without_client_state():
    store = ClientStore({}, CLIENTS)
    store.put(ids(1, 2), {})
    assert store.get(ids(1, 5)) == {}
    other = ClientStore({}, CLIENTS)
    other.restore(store.state())
    other.put(ids(2, 3), {})
    assert other.rows_used == 3
