"""The client store behaves like a dictionary, whatever the order of things."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from personafl.errors import RunError
from personafl.storage import client_store as module
from personafl.storage.client_store import ClientStore

CLIENTS = 30


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def rows_used(store: ClientStore) -> int:
    """How many of the store's rows are a client's, by what it counts itself."""
    return store._taken - len(store._free)


def row() -> dict[str, torch.Tensor]:
    """What a row is like; its values do not matter."""
    return {"theta": torch.tensor([1.0, 2.0]), "count": torch.tensor(7), "memory": torch.ones(2, 3)}


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
    """The rows of these clients, zeros where they have none."""
    nothing = {name: torch.zeros_like(value) for name, value in row().items()}
    rows = [{n: v[0] for n, v in state_of([model[c]]).items()} if c in model else nothing for c in wanted]
    return {name: torch.stack([row[name] for row in rows]) for name in nothing}


distinct = st.lists(st.integers(0, CLIENTS - 1), unique=True, min_size=1, max_size=12)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), distinct),
        st.tuples(st.just("drop"), distinct),
        st.tuples(st.just("get"), st.lists(st.integers(0, CLIENTS - 1), max_size=12)),
    ),
    max_size=25,
)


@pytest.fixture(scope="module", params=["one block", "small blocks", "mapped blocks"])
def make(request, tmp_path_factory):
    """Makes stores of each kind; a row has 40 bytes."""
    kind, folder = request.param, tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        if kind != "one block":
            patch.setattr(module, "BLOCK", 200)
        yield lambda: ClientStore(row(), CLIENTS, memory=0 if kind == "mapped blocks" else 1, folder=folder)
    assert not list(folder.iterdir())


@settings(max_examples=40, deadline=None)
@given(actions)
def test_the_store_is_a_dictionary(make, steps):
    store, model = make(), {}
    value = 100
    for action, clients in steps:
        if action == "put":
            values = list(range(value, value + len(clients)))
            value += len(clients)
            store.put(ids(*clients), state_of(values))
            model.update(zip(clients, values, strict=True))
        elif action == "drop":
            store.drop(ids(*clients))
            model = {client: kept for client, kept in model.items() if client not in clients}
        elif action == "get" and clients:
            assert_same(store.rows(ids(*clients)), expected_of(model, clients))
            known = [client for client in clients if client in model]
            assert_same(store.get(ids(*known)), expected_of(model, known) if known else store.rows(ids()))
            if len(known) < len(clients):
                with pytest.raises(KeyError, match="clients without a row"):
                    store.get(ids(*clients))
        assert rows_used(store) == len(model)
        assert np.flatnonzero(store.known(np.arange(CLIENTS))).tolist() == sorted(model)
    everybody = list(range(CLIENTS))
    assert_same(store.rows(ids(*everybody)), expected_of(model, everybody))


def test_nobody_is_asked_for():
    store = ClientStore(row(), CLIENTS)
    assert store.get(ids())["memory"].shape == (0, 2, 3)
    store.put(ids(), state_of([]))
    assert rows_used(store) == 0


ROOM = """
import resource, numpy as np, torch
from personafl.storage.client_store import ClientStore
def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = resident()
store = ClientStore({"theta": torch.zeros(10_000)}, clients=1_000_000)  # 40 GB, if all of them were there
store.put(np.array([999_999, 5]), {"theta": torch.ones(2, 10_000)})
assert store.rows(np.array([5, 6, 999_999]))["theta"].sum(1).tolist() == [10_000, 0, 10_000]
print((resident() - before) // 1024)
"""


def test_only_active_clients_take_room():
    """8 MB say where everybody's row is; the rest is next to nothing."""
    done = subprocess.run([sys.executable, "-c", ROOM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30


def test_growth_one_by_one_keeps_everything_and_never_exceeds_the_clients(make):
    store = make()
    order = np.random.default_rng(0).permutation(CLIENTS).tolist()
    for turn, client in enumerate(order):
        store.put(ids(client), state_of([client]))
        seen = order[: turn + 1]
        assert_same(store.get(ids(*seen)), state_of(seen))
    assert sum(len(block["theta"]) for block in store.blocks) == CLIENTS


def test_what_is_beyond_the_memory_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 2**19)
    store = ClientStore({"theta": torch.zeros(2**16)}, 20, memory=1, folder=tmp_path)  # 2 rows a block, 4 in memory
    store.put(np.arange(10), {"theta": torch.arange(10.0)[:, None].expand(10, 2**16)})
    assert (len(store.blocks), store.mapped) == (5, 3)
    assert store.get(np.arange(10))["theta"][:, -1].tolist() == list(range(10))
    assert not list(tmp_path.iterdir()), "a killed process would leave its files"


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs limits on file sizes")
def test_a_full_disk_is_an_error_and_no_crash(tmp_path):
    import resource
    import signal

    store = ClientStore({"theta": torch.zeros(1000)}, 100, memory=0, folder=tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RunError, match=r"keeping clients' states in .* failed: File too large; free some space"):
            store.put(ids(1), {"theta": torch.ones(1, 1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_what_comes_out_is_a_copy():
    store = ClientStore(row(), CLIENTS)
    store.put(ids(3), state_of([8]))
    for clients in (ids(3), ids(4), ids(3, 4)):
        for value in store.rows(clients).values():
            value.fill_(-1)
    assert_same(store.rows(ids(3, 4)), expected_of({3: 8}, [3, 4]))


def test_what_goes_in_is_copied():
    store, state = ClientStore(row(), CLIENTS), state_of([8])
    store.put(ids(3), state)
    for value in state.values():
        value.fill_(-1)
    assert_same(store.rows(ids(3, 4)), expected_of({3: 8}, [3, 4]))


def test_algorithms_without_client_state():
    store = ClientStore({}, CLIENTS)
    store.put(ids(1, 2), {})
    assert store.get(ids(1, 2)) == {} and store.known(ids(1, 5)).tolist() == [True, False]
    store.put(ids(2, 3), {})
    assert rows_used(store) == 3
