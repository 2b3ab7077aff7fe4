"""What the tests of partitions share."""

import numpy as np

MNIST_LABELS = np.repeat(np.arange(10), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
CIFAR10_LABELS = np.repeat(np.arange(10), 6000)


def deal(partition, labels, seed=0):
    return partition(np.asarray(labels), np.random.default_rng(seed))


def assert_proper(dealt, samples):
    """Nothing is dealt twice, nothing is dealt that is not there, nobody goes without."""
    together = np.concatenate(dealt.parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0 and together.max() < samples
    assert min(len(part) for part in dealt.parts) >= 1
    assert dealt.groups is None or len(dealt.groups) == len(dealt.parts)


def same(first, second):
    return (
        first.groups == second.groups
        and first.notes == second.notes
        and len(first.parts) == len(second.parts)
        and all(np.array_equal(a, b) for a, b in zip(first.parts, second.parts, strict=True))
    )


def counts_of(dealt, labels, classes):
    return np.array([np.bincount(labels[part], minlength=classes) for part in dealt.parts])


def neighbours(clients, per_client, classes):
    """Which of the classes u, u+1, … client u has, as a table."""
    has = np.zeros((clients, classes), bool)
    for u in range(clients):
        for j in range(per_client):
            has[u, (u + j) % classes] = True
    return has
