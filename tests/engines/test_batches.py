"""Batches: every sample once an epoch, and the same whoever else is there."""

from itertools import permutations
from math import ceil, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from personafl.engines.batches import BatchPlan, draw
from personafl.streams import mix, name_key


def keys_of(clients: list[int], seed: int = 0) -> np.ndarray:
    return mix(mix(name_key("batches"), seed), np.array(clients, np.int64))


def plan_of(
    sizes: list[int], batch_size: int, steps: list[int], clients: list[int] | None = None, seed: int = 0
) -> BatchPlan:
    clients = list(range(len(sizes))) if clients is None else clients
    return draw(np.array(sizes), keys_of(clients, seed), batch_size, np.array(steps))


def batches(plan: BatchPlan, client: int, steps: int) -> list[list[int]]:
    """The real samples of each step of a client."""
    return [plan.positions[client, s, : plan.counts[client, s]].tolist() for s in range(steps)]


federations = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 30)), min_size=1, max_size=6)
batch_sizes = st.integers(1, 12)
calm = settings(max_examples=150, deadline=None)


@calm
@given(federations, batch_sizes)
def test_every_epoch_uses_each_sample_exactly_once(clients, batch_size):
    sizes, steps = map(list, zip(*clients, strict=True))
    plan = plan_of(sizes, batch_size, steps)
    for k, (size, count) in enumerate(clients):
        per_epoch = ceil(size / batch_size)
        made = batches(plan, k, count)
        for start in range(0, count, per_epoch):
            epoch = made[start : start + per_epoch]
            used = [sample for batch in epoch for sample in batch]
            assert len(set(used)) == len(used)
            if len(epoch) == per_epoch:
                assert sorted(used) == list(range(size))


@calm
@given(federations, batch_sizes)
def test_batches_are_full_but_for_the_last_of_an_epoch(clients, batch_size):
    sizes, steps = map(list, zip(*clients, strict=True))
    plan = plan_of(sizes, batch_size, steps)
    assert plan.counts.shape == (len(sizes), max(steps))
    assert plan.positions.shape == (len(sizes), max(steps), min(batch_size, max(sizes)))
    for k, (size, count) in enumerate(clients):
        per_epoch = ceil(size / batch_size)
        last = size - (per_epoch - 1) * batch_size
        expected = [last if s % per_epoch == per_epoch - 1 else batch_size for s in range(count)]
        assert plan.counts[k, :count].tolist() == expected


@calm
@given(federations, batch_sizes, st.data())
def test_with_batch_sizes_of_their_own_clients_have_what_each_has_alone(clients, batch_size, data):
    sizes, steps = map(list, zip(*clients, strict=True))
    own = data.draw(st.lists(batch_sizes, min_size=len(sizes), max_size=len(sizes)))
    plan = draw(np.array(sizes), keys_of(list(range(len(sizes)))), np.array(own), np.array(steps))
    for k, count in enumerate(steps):
        alone = plan_of([sizes[k]], own[k], [count], [k])
        assert batches(plan, k, count) == batches(alone, 0, count)


@calm
@given(federations, batch_sizes)
def test_padding_points_at_samples_of_the_same_client(clients, batch_size):
    sizes, steps = map(list, zip(*clients, strict=True))
    plan = plan_of(sizes, batch_size, steps)
    for k, (size, count) in enumerate(clients):
        if count:
            assert ((plan.positions[k] >= 0) & (plan.positions[k] < size)).all()


def test_padding_of_a_client_without_steps_points_at_its_own_samples():
    plan = plan_of([2, 10], 3, [0, 5])
    assert plan.positions[0].max() < 2


@calm
@given(federations, batch_sizes, st.randoms(use_true_random=False))
def test_the_others_do_not_matter(clients, batch_size, random):
    sizes, steps = map(list, zip(*clients, strict=True))
    together = plan_of(sizes, batch_size, steps)
    order = list(range(len(clients)))
    random.shuffle(order)
    shuffled = plan_of([sizes[k] for k in order], batch_size, [steps[k] for k in order], clients=order)
    for place, k in enumerate(order):
        alone = plan_of([sizes[k]], batch_size, [steps[k]], clients=[k])
        assert batches(together, k, steps[k]) == batches(alone, 0, steps[k]) == batches(shuffled, place, steps[k])


@calm
@given(st.integers(1, 25), batch_sizes, st.integers(0, 20), st.integers(0, 40))
def test_more_steps_extend_the_plan(size, batch_size, steps, more):
    short, long = plan_of([size], batch_size, [steps]), plan_of([size], batch_size, [steps + more])
    assert batches(long, 0, steps) == batches(short, 0, steps)


@calm
@given(st.lists(st.tuples(st.integers(1, 25), st.integers(0, 8)), min_size=1, max_size=6))
def test_batch_size_0_takes_everything_at_every_step(clients):
    sizes, steps = map(list, zip(*clients, strict=True))
    plan = plan_of(sizes, 0, steps)
    for k, (size, count) in enumerate(clients):
        assert batches(plan, k, count) == [list(range(size))] * count
        assert (plan.positions[k] < size).all()


def test_a_client_smaller_than_a_batch_uses_all_it_has():
    plan = plan_of([3, 10], 5, [4, 2])
    for batch in batches(plan, 0, 4):
        assert sorted(batch) == [0, 1, 2]
    assert plan.counts.tolist() == [[3, 3, 3, 3], [5, 5, 5, 5]]


def test_nobody_trains():
    plan = plan_of([3, 4], 2, [0, 0])
    assert plan.positions.shape == (2, 0, 2) and plan.counts.shape == (2, 0)
    assert plan_of([3, 4], 0, [0, 0]).positions.shape == (2, 0, 4)


def test_a_client_without_steps_among_others_that_train():
    plan = plan_of([4, 5, 6], 2, [6, 0, 3])
    alone = plan_of([4, 6], 2, [6, 3], clients=[0, 2])
    assert batches(plan, 0, 6) == batches(alone, 0, 6)
    assert batches(plan, 2, 3) == batches(alone, 1, 3)


def test_epochs_clients_and_seeds_have_orders_of_their_own():
    plan = plan_of([50] * 20, 50, [20] * 20)
    other_seed = plan_of([50] * 20, 50, [20] * 20, seed=1)
    orders = {tuple(b[0]) for p in (plan, other_seed) for k in range(20) for b in zip(batches(p, k, 20), strict=True)}
    assert len(orders) == 2 * 20 * 20


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_orders_are_equally_likely(size):
    """Over clients in their first epoch, and over the epochs of one client."""
    count = 60 * factorial(size)
    over_clients = plan_of([size] * count, size, [1] * count).positions[:, 0]
    over_epochs = plan_of([size], size, [count]).positions[0]
    for orders in (over_clients, over_epochs):
        number = {order: i for i, order in enumerate(permutations(range(size)))}
        seen = np.bincount([number[tuple(order)] for order in orders.tolist()], minlength=len(number))
        assert chisquare(seen).pvalue > 1e-4


def test_every_sample_is_as_likely_in_every_place():
    orders = plan_of([20] * 4000, 20, [1] * 4000).positions[:, 0]
    for place in (0, 7, 19):
        assert chisquare(np.bincount(orders[:, place], minlength=20)).pvalue > 1e-4


def test_consecutive_epochs_are_unrelated():
    """Where a sample was in one epoch says nothing about the next."""
    plan = plan_of([8], 8, [6000]).positions[0]
    pairs = np.bincount(plan[:-1, 0] * 8 + plan[1:, 0], minlength=64)
    assert chisquare(pairs).pvalue > 1e-4


def test_a_large_cohort_draws_the_same_orders():
    """Where client, random bits and position do not fit into one number, orders are found another way."""
    sizes = [2**19] + [3] * 2**13
    everybody = plan_of(sizes, batch_size=50, steps=[4] + [1] * 2**13)
    assert len(sizes).bit_length() + max(sizes).bit_length() > 32
    for client, steps in ((0, 4), (1, 1), (2**13, 1)):
        alone = plan_of([sizes[client]], batch_size=50, steps=[steps], clients=[client])
        assert batches(everybody, client, steps) == batches(alone, 0, steps)
