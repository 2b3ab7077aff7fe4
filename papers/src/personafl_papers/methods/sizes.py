"""How large the study is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """What every run of the study shares.

    Attributes
    ----------
    clients, samples
        Of a federation whose clients are drawn: how many, and how many samples each has on average, for training,
        validation and testing together.
    pixels, hidden
        Images are so many pixels wide (28, or 14 by the mean of four); the width of the model's hidden layer.
    rounds, steps, batch_size
        Rounds, and in each round every client's steps and how many samples each takes.
    seeds
        How many; data, partition, initial weights and batches follow from the seed. Tries are made with the first one.
    """

    name: str
    clients: int
    samples: int
    pixels: int
    hidden: int
    rounds: int
    steps: int
    batch_size: int
    seeds: int = 3


SIZES = {
    "small": Size("small", clients=21, samples=150, pixels=14, hidden=48, rounds=20, steps=10, batch_size=16),
    "full": Size("full", clients=30, samples=300, pixels=28, hidden=64, rounds=50, steps=10, batch_size=16),
}
