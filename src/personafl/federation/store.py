"""The clients' samples as one ragged store: one array for each field, and where each client's samples lie in it.

A batch for many clients is then a single gather, a saved federation is a few `.npy` files, and features
larger than memory are memory-mapped.
"""

import difflib
from dataclasses import InitVar, dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import DataError
from personafl.federation import folders
from personafl.federation.arrays import SPLITS, Array, Indices, Split, split_index
from personafl.federation.checks import (
    check_class_names,
    check_constants,
    check_features,
    check_labels,
    check_structure,
)
from personafl.federation.description import federation_html, federation_lines
from personafl.inputs import Inputs, as_state, some
from personafl.pretrained.backbone import Raw
from personafl.streams import name_key


@dataclass(frozen=True, eq=False, repr=False)
class SampleStore:
    """The fields of a `Federation`, which documents them, checked when they are set."""

    x: Inputs
    y: torch.Tensor
    bounds: Indices
    ids: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    classes: int | None = None
    name: str = "federation"
    truth: dict[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    raw: Raw | None = None
    # A saved federation was scanned for NaN before it was written; scanning again would read all of x.
    scanned: InitVar[bool] = False

    def __post_init__(self, scanned: bool) -> None:
        object.__setattr__(self, "bounds", np.array(self.bounds, np.int64))
        self.bounds.setflags(write=False)
        check_structure(self)
        if self.classes is None and not self.y.is_floating_point():
            object.__setattr__(
                self, "classes", int(self.y.max()) + 1 if self.class_names is None else len(self.class_names)
            )
        check_labels(self)
        check_class_names(self)
        if not scanned:
            check_features(self)
            check_constants(self)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return "\n".join(federation_lines(self))

    def _repr_html_(self) -> str:
        return federation_html(self)

    def starts(self, split: Split) -> Indices:
        """Where each client's samples of a split start, (M,)."""
        return self.bounds[:, split_index(split)]

    def sizes(self, split: Split) -> Indices:
        """How many samples of a split each client has, (M,)."""
        sizes: Indices = self._sizes[split_index(split)]
        return sizes

    @cached_property
    def _sizes(self) -> Indices:
        """(3, M): made once, because rounds ask for it and must not take time that grows with the clients."""
        sizes: Indices = np.ascontiguousarray(np.diff(self.bounds, axis=1).T)
        sizes.setflags(write=False)
        return sizes

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample: one a class, or the size of a target."""
        return self.y.shape[1] if self.multi_label else self.classes or int(np.prod(self.y.shape[1:]))

    @cached_property
    def multi_label(self) -> bool:
        """Whether a sample has several labels of 0 and 1, (N, d)."""
        two = self.y.ndim == 2 and self.classes is not None and self.classes <= 2
        return two and int(self.y.min()) >= 0

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """The random-number key of each client, (M,): it depends on the client's name only."""
        return np.array([name_key(client) for client in self.ids], np.uint64)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client: m for m, client in enumerate(self.ids)}

    def index(self, client_id: str | int) -> int:
        """The position of a client among the ids; an integer stands for the id that is written like it."""
        client_id = str(client_id)
        if client_id not in self._positions:
            near = difflib.get_close_matches(client_id, self.ids, n=1, cutoff=0.0)
            raise DataError(f"no client {client_id!r} among the {len(self)} clients; did you mean {near[0]!r}?")
        return self._positions[client_id]

    def client(self, client_id: str | int) -> dict[Split, tuple[Inputs, torch.Tensor]]:
        """One client's (x, y) for each split, as views of the store.

        >>> import personafl as pf
        >>> fed = pf.Federation.from_clients({"ann": {"train": ([[0.0]], [0]), "test": ([[5.0]], [1])}})
        >>> fed.client("ann")["test"]
        (tensor([[5.]]), tensor([1]))
        """
        edges = self.bounds[self.index(client_id)].tolist()
        return {
            split: (some(self.x, slice(edges[s], edges[s + 1])), self.y[edges[s] : edges[s + 1]])
            for s, split in enumerate(SPLITS)
        }

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of everything that training can see; equal for equal data on every machine.

        Features that a backbone made count by what they were made of: their last bits depend on the machine.
        """
        if self.raw is not None:
            return folders.digest(
                folders.constants_of(self), [self.raw.fingerprint, *self.raw.backbone.key, sorted(self.constants)]
            )
        inputs = sorted(as_state(self.x).items())
        arrays = [*(value.numpy() for _, value in inputs), self.y.numpy(), self.bounds, *folders.constants_of(self)]
        labels = [self.ids, self.groups, self.classes, *([sorted(self.constants)] if self.constants else [])]
        # One tensor has no name, so that its federation has the fingerprint that it always had.
        return folders.digest(arrays, labels + ([[name for name, _ in inputs]] if isinstance(self.x, dict) else []))
