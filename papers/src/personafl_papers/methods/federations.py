"""The federations of the study: real data, divided by who made it or by label.

Of each federation everything follows from the size and the seed: which samples are drawn, who has them, and what is for
training (40%), validation (20%) and testing (40%). Few training samples, because a client that has plenty needs nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from personafl.data import EMNIST, MNIST, build
from personafl.data.images import FMNIST_FILES, MNIST_FILES
from personafl.data.partitions import Dirichlet, Lognormal, Pathological
from personafl.data.readers import find, missing
from personafl.errors import DataError
from personafl.federation import Federation
from personafl.federation.npz import read_npz
from personafl.federation.partition import Partition
from personafl.models import MLP, Model
from personafl.storage.cache import prepared
from personafl.streams import generator
from personafl_papers.data.letters import Letters
from personafl_papers.data.sent140 import Sent140
from personafl_papers.data.wakeword import Wakeword
from personafl_papers.methods.sizes import Size
from personafl_papers.partitions.practical import Practical

SPLITS = (0.4, 0.2, 0.4)
EMNIST_PACKED, FEMNIST_PACKED, HEART = "emnist_byclass_test.npz", "femnist_writers.npz", "heart_disease.csv.gz"
BANDS, STEPS_HEARD, FRAMES = 20, 14, 98
"""A spectrogram of the wake-word federation: bands, and the means of so many equal pieces of its frames."""


@dataclass(frozen=True)
class StudyFederation:
    """A federation of the study: what it is, how it is made of a size and a seed, and what its clients train."""

    about: str
    make: Callable[[Size, int], Federation]
    model: Callable[[Size], Model]


@dataclass(frozen=True)
class NormalizedMLP:
    """One hidden layer with batch normalization: what FedBN is for."""

    name: ClassVar[str] = "normalized-mlp"

    hidden: int = 32

    def build(self, shape: Sequence[int], outputs: int, constants: Mapping[str, Tensor] = {}) -> nn.Module:
        first = nn.Linear(prod(shape), self.hidden)
        return nn.Sequential(
            nn.Flatten(), first, nn.BatchNorm1d(self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs)
        )


# --- images -----------------------------------------------------------------------------------------------------------

Images = tuple[NDArray[Any], NDArray[np.int64]]
"""Pixels (N, …) of 28 × 28, from 0 to 1 or to 255, and labels."""


def images(pool: Images, owner: NDArray[Any], size: Size, seed: int, name: str, classes: int) -> Federation:
    """A federation of the images that have an owner; `owner` is "" where nobody has one."""
    kept = np.flatnonzero(owner != "")
    x, y = smaller(np.asarray(pool[0][kept]), size.pixels), np.asarray(pool[1][kept])
    return Federation.from_arrays(x, y, clients=owner[kept], splits=SPLITS, seed=seed, classes=classes, name=name)


def smaller(x: NDArray[Any], pixels: int) -> NDArray[np.float32]:
    """Images of 28 × 28 as float32 from 0 to 1; of 14 × 14 where that is asked for, the mean of four pixels each.

    >>> smaller(np.full((2, 28, 28), 255, np.uint8), 14)[:, 0, 0].tolist()
    [1.0, 1.0]
    """
    scale = 255 if x.dtype == np.uint8 else 1
    block = 28 // pixels
    found: NDArray[np.float32] = x.reshape(len(x), pixels, block, pixels, block).mean((2, 4), dtype=np.float32) / scale
    return found


def dealt(labels: NDArray[np.int64], partition: Partition, rng: np.random.Generator) -> NDArray[np.str_]:
    """The client of each sample, "" for those that a partition leaves out."""
    owner = np.full(len(labels), "", "U16")
    for client, part in enumerate(partition(labels, rng).parts):
        owner[part] = f"client-{client}"
    return owner


def some(labels: NDArray[np.int64], partition: Partition, many: int, rng: np.random.Generator) -> NDArray[np.str_]:
    """The same, of so many samples that are drawn first."""
    drawn = rng.choice(len(labels), min(many, len(labels)), replace=False)
    owner = np.full(len(labels), "", "U16")
    owner[drawn] = dealt(labels[drawn], partition, rng)
    return owner


def in_three_groups(groups: str, size: Size) -> Practical:
    """FedAMP's practical division: a third of the clients for each group, with more, as many and fewer samples."""
    third = max(1, size.clients // 3)
    samples = tuple(round(size.samples * share) for share in (1.4, 1.0, 0.6))
    return Practical(groups=groups, clients=(third, third, third), samples=samples)


def drawn_owners(owners: NDArray[np.str_], clients: int, least: int, rng: np.random.Generator) -> NDArray[np.str_]:
    """The owner of each sample of so many owners, drawn among those with enough samples; "" for all others."""
    names, counts = np.unique(owners, return_counts=True)
    enough = names[(counts >= least) & (names != "")]
    if len(enough) < clients:
        raise DataError(f"{len(enough)} people have {least} samples or more, and {clients} are needed")
    return np.where(np.isin(owners, rng.choice(enough, clients, replace=False)), owners, "")


def mnist() -> Images:
    pool = MNIST_FILES.pool("unit")
    return pool["x"], pool["y"]


def fmnist() -> Images:
    pool = FMNIST_FILES.pool("unit")
    return pool["x"], pool["y"]


def emnist() -> Images:
    """EMNIST by class: its test split where that is at hand as one .npz, else all of it."""
    file = find(EMNIST_PACKED)
    if file is None:
        samples = EMNIST().load(0)
        return samples.x, samples.y  # type: ignore[return-value]
    arrays = packed_images(file.name, "y")
    return arrays["x"], arrays["y"]


def packed_images(name: str, *more: str) -> dict[str, NDArray[Any]]:
    """Images x and further arrays, one value an image, of an .npz in the data directory; kept unpacked in the cache."""
    file = find(name)
    if file is None:
        raise missing(name.partition("_")[0], name)
    shapes: dict[str, tuple[int | None, ...]] = {"x": (None, 28, 28), **{what: (None,) for what in more}}

    def read() -> dict[str, NDArray[Any]]:
        found = read_npz(file, shapes, kinds="uib")
        return {what: values if what == "x" else values.astype(np.int64) for what, values in found.items()}

    return prepared(file.stem, [file], {"version": 1, "arrays": list(shapes)}, read)


def mnist_practical(size: Size, seed: int) -> Federation:
    pool, rng = mnist(), generator(seed, "study/mnist-practical")
    return images(pool, dealt(pool[1], in_three_groups("mnist", size), rng), size, seed, "mnist-practical", 10)


def mnist_pathological(size: Size, seed: int) -> Federation:
    pool, rng = mnist(), generator(seed, "study/mnist-pathological")
    owner = some(pool[1], Pathological(clients=size.clients), size.clients * size.samples, rng)
    return images(pool, owner, size, seed, "mnist-pathological", 10)


def mnist_writers(size: Size, seed: int) -> Federation:
    pool, rng = mnist(), generator(seed, "study/mnist-writers")
    owner = drawn_owners(MNIST().owners(len(pool[1])), size.clients, 50, rng)
    return images(pool, owner, size, seed, "mnist-writers", 10)


def fmnist_dirichlet(size: Size, seed: int) -> Federation:
    pool, rng = fmnist(), generator(seed, "study/fmnist-dirichlet")
    partition = Dirichlet(clients=size.clients, alpha=0.3, min_samples=10)
    return images(pool, some(pool[1], partition, size.clients * size.samples, rng), size, seed, "fmnist-dirichlet", 10)


def emnist_practical(size: Size, seed: int) -> Federation:
    pool, rng = emnist(), generator(seed, "study/emnist-practical")
    return images(pool, dealt(pool[1], in_three_groups("emnist", size), rng), size, seed, "emnist-practical", 62)


def femnist_writers(size: Size, seed: int) -> Federation:
    arrays = packed_images(FEMNIST_PACKED, "y", "writer")
    owners = np.char.add("writer-", arrays["writer"].astype(str))
    owner = drawn_owners(owners, size.clients, 100, generator(seed, "study/femnist-writers"))
    return images((arrays["x"], arrays["y"]), owner, size, seed, "femnist-writers", 62)


def letters_lognormal(size: Size, seed: int) -> Federation:
    samples, rng = Letters().load(seed), generator(seed, "study/letters-lognormal")
    partition = Lognormal(
        clients=size.clients, classes_per_client=5, mean=float(np.log(size.samples)), sigma=0.5, least=20
    )
    owner = dealt(np.asarray(samples.y), partition, rng)
    kept = np.flatnonzero(owner != "")
    x = np.asarray(samples.x)[kept]
    return Federation.from_arrays(
        x, samples.y[kept], clients=owner[kept], splits=SPLITS, seed=seed, classes=26, name="letters-lognormal"
    )


# --- tables, sounds, texts --------------------------------------------------------------------------------------------


def heart_hospitals(size: Size, seed: int) -> Federation:
    """Every size has all 920 patients of the four hospitals; gaps are filled by medians of the training data."""
    file = find(HEART)
    if file is None:
        raise missing("heart disease", HEART)
    kinds = ["cp", "restecg", "slope", "thal"]
    made = Federation.from_table(
        file, client="site", label="target", categorical=kinds, missing="fill", splits=SPLITS, seed=seed,
        normalize="standard",
    )  # fmt: skip
    return replace(made, y=(made.y > 0).long(), classes=2, class_names=None, name="heart-hospitals")


def wakeword_devices(size: Size, seed: int) -> Federation:
    """Devices of five types; a spectrogram's frames are summed up in pieces."""
    source = Wakeword(clients=max(1, size.clients // 5), validation=0.25, mels=BANDS, negatives=3)
    made = build(source, seed=seed)
    x = made.x.reshape(len(made.y), BANDS, STEPS_HEARD, FRAMES // STEPS_HEARD).mean(-1)  # type: ignore[union-attr]
    return replace(made, x=x, name="wakeword-devices")


def tweets_users(size: Size, seed: int) -> Federation:
    """Users with most tweets, four for every client of other federations, as even they have few; a tweet is the mean
    of its words' vectors."""
    samples = Sent140().load(seed)
    owners = np.asarray(samples.clients)
    names, counts = np.unique(owners, return_counts=True)
    kept = np.flatnonzero(np.isin(owners, names[np.argsort(-counts, kind="stable")[: 4 * size.clients]]))
    words = np.asarray(samples.x)[kept]
    vectors = np.asarray(samples.constants["embedding"])[words]
    x = vectors.sum(1) / np.maximum((words > 0).sum(1, keepdims=True), 1)
    return Federation.from_arrays(
        x.astype(np.float32), samples.y[kept], clients=owners[kept], splits=SPLITS, seed=seed, classes=2,
        name="tweets-users",
    )  # fmt: skip


def perceptron(size: Size) -> Model:
    return MLP(hidden=(size.hidden,))


def narrow(size: Size) -> Model:
    return MLP(hidden=(16,))


def normalized(size: Size) -> Model:
    return NormalizedMLP(size.hidden)


FEDERATIONS: dict[str, StudyFederation] = {
    "mnist-practical": StudyFederation(
        "MNIST, three groups of clients, 80% of a client's samples of its group's digits", mnist_practical, perceptron
    ),
    "mnist-pathological": StudyFederation("MNIST, two digits a client", mnist_pathological, perceptron),
    "emnist-practical": StudyFederation(
        "EMNIST, 62 classes, groups with mostly digits, capitals and small letters", emnist_practical, perceptron
    ),
    "femnist-writers": StudyFederation("FEMNIST, 62 classes, by writers", femnist_writers, perceptron),
    "fmnist-dirichlet": StudyFederation("Fashion-MNIST, labels by Dirichlet(0.3)", fmnist_dirichlet, perceptron),
    "heart-hospitals": StudyFederation("Heart disease, 920 patients of four hospitals", heart_hospitals, narrow),
    "tweets-users": StudyFederation(
        "Sentiment140, the users with most tweets, by the mean of their words' vectors", tweets_users, narrow
    ),
    "wakeword-devices": StudyFederation(
        "Speech Commands heard by five types of devices: the wake word or another; with batch normalization",
        wakeword_devices,
        normalized,
    ),
    "letters-lognormal": StudyFederation(
        "OCR letters, 26 classes, five neighbouring ones a client, unequal sizes", letters_lognormal, perceptron
    ),
    "mnist-writers": StudyFederation("MNIST by the people who wrote the digits", mnist_writers, perceptron),
}
"""By name: the data, and how it is divided."""
