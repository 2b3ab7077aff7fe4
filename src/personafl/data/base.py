"""What a data set delivers, and what it has to be."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from numpy.typing import NDArray

Structure = Literal["pool", "natural", "own"]


@dataclass(frozen=True, eq=False)
class Samples:
    """What a source delivers: samples, and what it knows about whose they are.

    Attributes
    ----------
    x, y : arrays
        Features (N, ...), or several inputs by name, and labels: integers for classes, floats for regression.
    classes : int, optional
        Number of classes; None for regression.
    clients : array, optional
        The client of each sample (N,), or, with `bounds`, the id of each client (M,).
    groups : array, optional
        The group of each sample (N,), or, with `bounds`, of each client (M,).
    bounds : array, optional
        (M, 4), when the samples already lie in a federation's order with their splits decided.
    truth : dict of arrays
        Known truth for each client, first dimension M, in the natural order of the client ids.
    notes : tuple of str
        What the source had to bend, for people to read.
    constants : dict of arrays
        Constants that all clients share and that a model may use, such as word vectors.
    """

    x: NDArray[Any] | dict[str, NDArray[Any]]
    y: NDArray[Any]
    classes: int | None
    clients: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    bounds: NDArray[Any] | None = None
    truth: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)


class Source(Protocol):
    """A frozen dataclass of a data set's settings that can load the data set.

    `structure` says what the data knows about clients: "pool", nothing, so a partition is needed; "natural",
    whose each sample is (a writer, a speaker), so a partition may be given and replaces that; "own", clients
    are part of the definition and there is nothing to partition. `splits` are the shares used when a config
    gives none, or None where the source decides train and test itself. A class variable `default_model` may name the
    model that is taken where a config names none.
    """

    name: ClassVar[str]
    splits: ClassVar[tuple[float, float, float] | None]

    @property
    def structure(self) -> Structure:
        """What the data knows about clients."""

    def load(self, seed: int) -> Samples:
        """The samples; what is drawn at random follows from the seed."""


@runtime_checkable
class Owned(Protocol):
    """A source that is a pool, and yet knows whose its samples are when the partition `natural` asks."""

    def owners(self, samples: int) -> NDArray[Any]:
        """Whose each of the samples is, (N,)."""
