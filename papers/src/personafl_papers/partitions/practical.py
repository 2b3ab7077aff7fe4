"""The practical non-IID setting of FedAMP: groups of clients, each with its dominating classes (Huang et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from personafl.errors import ConfigError, DataError
from personafl.federation.partition import (
    Assignment,
    Indices,
    check_enough,
    check_supply,
    dealt,
    fewer_where_short,
    left_out,
    shuffled_by_class,
    whole,
)
from personafl.registry import later


@dataclass(frozen=True)
class Preset:
    """The groups for one data set: their dominating classes, and for each group clients and samples a client."""

    groups: dict[str, tuple[int, ...]]
    clients: tuple[int, ...]
    samples: tuple[int, ...]


# The classes of CIFAR-100 (its fine labels, which are in alphabetical order), a superclass a row.
CIFAR100_ANIMALS = (
    (4, 30, 55, 72, 95), (1, 32, 67, 73, 91),  # aquatic mammals, fish
    (6, 7, 14, 18, 24), (3, 42, 43, 88, 97), (15, 19, 21, 31, 38),  # insects, large carnivores, large herbivores
    (34, 63, 64, 66, 75), (26, 45, 77, 79, 99), (2, 11, 35, 46, 98),  # medium mammals, invertebrates, people
    (27, 29, 44, 78, 93), (36, 50, 65, 74, 80),  # reptiles, small mammals
)  # fmt: skip
CIFAR100_THINGS = (
    (9, 10, 16, 28, 61), (22, 39, 40, 86, 87), (5, 20, 25, 84, 94),  # food containers, electrical devices, furniture
    (12, 17, 37, 68, 76), (8, 13, 48, 58, 90), (41, 69, 81, 85, 89),  # buildings and roads, vehicles 1, vehicles 2
)  # fmt: skip
CIFAR100_PLANTS = (
    (54, 62, 70, 82, 92), (0, 51, 53, 57, 83), (23, 33, 49, 60, 71), (47, 52, 56, 59, 96),
)  # fmt: skip  # flowers, fruit and vegetables, natural scenes, trees

PRESETS = {
    # Ours, because the paper does not publish its groups: digits drawn alike, clothes worn alike, superclasses of a
    # kind. The sizes follow the paper's EMNIST, and fit into the pools of 70,000 and 60,000.
    "mnist": Preset({"loops": (0, 6, 8, 9), "strokes": (1, 4, 7), "curves": (2, 3, 5)}, (20, 20, 20), (1000, 700, 400)),
    "fmnist": Preset({"tops": (0, 2, 4, 6), "shoes": (5, 7, 9), "other": (1, 3, 8)}, (20, 20, 20), (1000, 700, 400)),
    "cifar100": Preset(
        {"animals": sum(CIFAR100_ANIMALS, ()), "things": sum(CIFAR100_THINGS, ()), "plants": sum(CIFAR100_PLANTS, ())},
        (20, 20, 20),
        (1000, 700, 400),
    ),
    # The paper's, for the 62 classes of EMNIST by class.
    "emnist": Preset(
        {"digits": tuple(range(10)), "upper": tuple(range(10, 36)), "lower": tuple(range(36, 62))},
        (10, 26, 26),
        (1000, 700, 400),
    ),
}


@dataclass(frozen=True)
class Practical:
    """Groups of clients: most of a client's data is of its group's dominating classes, the rest of all others.

    A client's dominating samples are spread evenly over the group's classes and the others evenly over all other
    classes of the data. Clients come group after group. The sizes are a client's total, before the splits; the
    paper's 100 test samples a client are not part of the partition.

    Presets: "emnist" is the paper's (62 clients: 10 with mostly digits and 1,000 samples, 26 with upper case and
    700, 26 with lower case and 400). "mnist", "fmnist" and "cifar100" are ours, three groups of 20 clients with 1,000,
    700 and 400 samples: 0 6 8 9, 1 4 7 and 2 3 5 for MNIST; tops (T-shirt, pullover, coat, shirt), shoes (sandal,
    sneaker, ankle boot) and other (trouser, dress, bag) for Fashion-MNIST; animals and people (10 superclasses), things
    (6), plants and natural scenes (4) for CIFAR-100, where every client has all 100 classes.

    Parameters
    ----------
    groups : str or tuple of tuples of int
        A preset's name, or the dominating classes of each group.
    clients : tuple of int
        How many clients each group has; left out, the preset's.
    samples : tuple of int
        How many samples a client of each group has; left out, the preset's.
    dominating
        The share of a client's samples that is of its group's classes.
    short
        What happens where a class has fewer samples than the clients need: "refuse", or "fewer", with which its clients
        get proportionally fewer of it, at least one each, and a note says so.

    Examples
    --------
    >>> labels = np.repeat(np.arange(4), 50)
    >>> halves = Practical(groups=((0, 1), (2, 3)), clients=(1, 2), samples=(40, 20))
    >>> dealt = halves(labels, np.random.default_rng(0))
    >>> dealt.groups, np.bincount(labels[dealt.parts[0]]).tolist()
    (['group-0', 'group-1', 'group-1'], [16, 16, 4, 4])
    """

    name: ClassVar[str] = "practical"
    paper: ClassVar[str] = (
        "FedAMP's practical setting (Huang et al. 2021); groups: emnist theirs; mnist, fmnist, cifar100 ours"
    )
    groups: str | tuple[tuple[int, ...], ...] = "mnist"
    clients: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    dominating: float = 0.8
    short: Literal["refuse", "fewer"] = later("refuse")

    def __post_init__(self) -> None:
        if isinstance(self.groups, str) and self.groups not in PRESETS:
            raise ConfigError(
                f"partition practical: groups = {self.groups!r} is no preset; use {', '.join(PRESETS)} or the "
                f"classes of each group, such as [[0, 1], [2, 3]]"
            )
        settings = self.settings()
        if not settings.groups:
            raise ConfigError("partition practical: groups is empty: somebody has to train")
        for group, members in settings.groups.items():
            proper = isinstance(members, tuple | list) and len(members) > 0 and all(map(whole, members))
            if not proper or len(set(members)) < len(members):
                raise ConfigError(
                    f"partition practical: {group} has the classes {members!r}; give it one or more different "
                    f"class numbers"
                )
        for setting in ("clients", "samples"):
            each = getattr(settings, setting)
            if len(each) != len(settings.groups) or not all(whole(value) and value >= 1 for value in each):
                raise ConfigError(
                    f"partition practical: {setting} = {list(each)} must be {len(settings.groups)} whole numbers of "
                    f"at least 1, one for each group"
                )
        if not 0 < self.dominating <= 1:
            raise ConfigError(
                f"partition practical: dominating = {self.dominating} must be above 0 and at most 1: it is a share"
            )

    def settings(self) -> Preset:
        """The groups, clients and samples in force."""
        if isinstance(self.groups, str):
            preset = PRESETS[self.groups]
            return Preset(preset.groups, self.clients or preset.clients, self.samples or preset.samples)
        return Preset({f"group-{g}": members for g, members in enumerate(self.groups)}, self.clients, self.samples)

    def __call__(self, labels: NDArray[Any], rng: np.random.Generator) -> Assignment:
        classes, by_class = shuffled_by_class(self, labels, rng)
        settings = self.settings()
        if self.short == "refuse":
            check_enough(self, len(labels), sum(m * n for m, n in zip(settings.clients, settings.samples, strict=True)))
        rows, names = [], []
        for (group, members), clients, samples in zip(
            settings.groups.items(), settings.clients, settings.samples, strict=True
        ):
            mine = _positions(group, members, classes)
            others = np.setdiff1d(np.arange(len(classes)), mine)
            most = max(1, round(samples * self.dominating))
            if samples > most and not others.size:
                raise DataError(
                    f"partition practical: {group} has all {len(classes)} classes of the data, which leaves none for "
                    f"the other {samples - most} samples of its clients; use dominating = 1.0 or fewer classes"
                )
            for _ in range(clients):
                row = np.zeros(len(classes), np.int64)
                row[mine] = _evenly(most, len(mine), rng)
                row[others] = _evenly(samples - most, len(others), rng)
                rows.append(row)
                names.append(group)
        counts: Indices = np.stack(rows)
        if self.short == "refuse":
            advice = 'use fewer clients or fewer samples a client, or short = "fewer"'
            check_supply(self, classes, by_class, counts.sum(axis=0), advice)
        counts, notes = fewer_where_short(self, classes, by_class, counts)
        notes += left_out(len(labels), int(counts.sum()), "the groups do not ask for more")
        return Assignment(dealt(by_class, counts), groups=names, notes=notes)


def _positions(group: str, members: Sequence[int], classes: NDArray[Any]) -> Indices:
    position = {int(label): c for c, label in enumerate(classes)}
    if missing := [label for label in members if label not in position]:
        raise DataError(
            f"partition practical: {group} has class {missing[0]}, which is not among the {len(classes)} classes of "
            f"the labels ({classes[0]} to {classes[-1]}); use groups that fit the data"
        )
    return np.array([position[label] for label in members], np.int64)


def _evenly(total: int, places: int, rng: np.random.Generator) -> Indices:
    """`total` over `places`, differing by at most one, who gets more at random."""
    if places == 0:
        return np.zeros(0, np.int64)
    return np.asarray(total // places + (rng.permutation(places) < total % places), np.int64)
