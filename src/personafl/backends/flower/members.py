"""Who belongs to a federation: what the operator says of the sites, and waiting for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.serverapp import Grid

from personafl.backends.flower.messages import KINDS
from personafl.backends.flower.nodes import Nodes, SiteInfo, missing
from personafl.backends.flower.records import Record
from personafl.backends.flower.secure.settings import Secure
from personafl.backends.flower.signing import OperatorSeal
from personafl.backends.flower.vectors import EMBEDDING, WordVectorFile
from personafl.errors import DataError, RunError
from personafl.federation.arrays import SPLITS
from personafl.federation.splits import natural_order
from personafl.inputs import Shape, parts, shape_text
from personafl.settings import check
from personafl.states import State
from personafl.training.evaluation import ClientIndex
from personafl.version import __version__


@dataclass(frozen=True)
class FederationSettings:
    """Who takes part, and what is done when some do not answer: the `[federation]` table of an operator's config.

    Parameters
    ----------
    input_shape
        The shape of one sample; of several inputs a table with the shape of each, {ids = [32], mask = [32]}.
    classes
        How many there are; left out for regression.
    outputs
        Without classes: how many numbers a label has.
    clients
        The ids of the sites that belong to the federation. Those that do not come in time are left out until they do.
    sites
        Instead of their ids: how many there are. The run begins when as many are there.
    min_answers
        A round counts with this many answers. With fewer, those that came are given up.
    round_timeout
        Seconds that sites have to answer.
    patience
        Seconds to wait for sites at the beginning, and whenever fewer than `min_answers` of a round's sites are there.
    most_samples
        The most samples of a split that a site may say to have; who says more is refused. The default is what the
        columns of clients.parquet hold.
    max_weight
        The largest share that one site may have in an aggregate, whatever it says of its samples. Up to one half, no
        site outvotes all others together. With fewer than 1/`max_weight` answers all weigh the same. 1 for no limit.
    max_norm_factor
        An update that is longer than the round's median by more than this factor is left out, where there are three
        answers. The default is generous: honest updates differ in length about as their numbers of steps do. 0 for
        no limit.
    vectors
        The word vectors that the model takes, on every machine's own disk. In a config a table of its own, `[vectors]`.
    secure
        How answers are added up by secure aggregation; None where the server gets each. In a config it is a table of
        its own, `[secure]`.
    """

    input_shape: Shape
    classes: int | None = None
    outputs: int = 1
    clients: tuple[str, ...] = ()
    sites: int = 0
    min_answers: int = 1
    round_timeout: float = 600.0
    patience: float = 600.0
    most_samples: int = 2**31 - 1
    max_weight: float = 0.5
    max_norm_factor: float = 100.0
    secure: Secure | None = None
    vectors: WordVectorFile | None = None

    @property
    def constants(self) -> State:
        """What the model is built with besides its settings."""
        return {} if self.vectors is None else {EMBEDDING: self.vectors.load(self.vectors.sha256)}

    def __post_init__(self) -> None:
        shape = self.input_shape
        sizes = [size for each in parts(shape).values() for size in each]
        check("federation.input_shape", shape, all(size >= 1 for size in sizes), "sizes of at least 1")
        check("federation.classes", self.classes, self.classes is None or self.classes >= 2, "at least 2, or left out")
        check("federation.outputs", self.outputs, self.outputs >= 1, "at least 1")
        twice = [client for client in self.clients if self.clients.count(client) > 1]
        check("federation.clients", twice[:1], not twice, "names that are there once")
        count = len(self.clients) or self.sites
        check(
            "federation.sites", self.sites, self.sites >= 0 and count > 0, "how many sites there are; or give clients"
        )
        check("federation.sites", self.sites, not self.clients or not self.sites, "left out where clients names them")
        few = f"1 to {count}, the number of sites"
        check("federation.min_answers", self.min_answers, 1 <= self.min_answers <= count, few)
        check("federation.round_timeout", self.round_timeout, self.round_timeout > 0, "above 0")
        check("federation.patience", self.patience, self.patience >= 0, "at least 0")
        most = "1 to 2147483647"
        check("federation.most_samples", self.most_samples, 1 <= self.most_samples < 2**31, most)
        check("federation.max_weight", self.max_weight, 0 < self.max_weight <= 1, "in (0, 1]: a share")
        factor = self.max_norm_factor
        check("federation.max_norm_factor", factor, factor == 0 or factor >= 1, "at least 1, or 0 for no limit")

    def check_site(self, info: SiteInfo) -> None:
        """Refuse a site whose data or software does not fit."""
        who = f"site {info.client}"
        if info.personafl != __version__:
            raise DataError(f"{who} has personafl {info.personafl}, the server {__version__}: install that")
        if info.shape != self.input_shape:
            here, expected = shape_text(info.shape), shape_text(self.input_shape)
            raise DataError(f"{who} has samples of shape {here}, expected {expected}")
        if (info.classes == 0) != (self.classes is None):
            kinds = ("classes", "numbers")
            raise DataError(f"{who} has labels that are {kinds[info.classes == 0]}, expected {kinds[not self.classes]}")
        if self.classes is not None and info.classes > self.classes:
            raise DataError(f"{who} has {info.classes} classes, expected at most {self.classes}")
        if self.classes is None and info.outputs != self.outputs:
            raise DataError(f"{who} has labels of {info.outputs} numbers, expected {self.outputs}")
        for kind in parts(info.dtype).values():
            if kind not in KINDS:
                raise DataError(f"{who} has samples of type {kind}; known: {', '.join(KINDS)}")
        for split in SPLITS:
            if (count := getattr(info, split)) > self.most_samples:
                raise DataError(
                    f"{who} says that it has {count} {split} samples; federation.most_samples is {self.most_samples}"
                )
        if info.train == 0:
            raise DataError(f"{who} has no training samples")
        if self.clients and info.client not in self.clients:
            raise DataError(f"{who} is not among federation.clients")


def gather(
    grid: Grid,
    settings: FederationSettings,
    ids: Sequence[str] = (),
    seal: OperatorSeal | None = None,
    record: Record | None = None,
) -> tuple[Nodes, ClientIndex]:
    """Wait for the sites of a federation; who they are, in the natural order of their ids.

    Parameters
    ----------
    ids
        Who took part so far, where a run goes on: nobody else does.
    seal
        The operator's keys; left out, messages are not signed.
    record
        Where it is written down who joined, answered and was refused.
    """
    nodes = Nodes(grid, settings.check_site, seal, record)
    named = sorted(ids or settings.clients, key=natural_order)
    count = len(named) or settings.sites

    def enough(online: Mapping[str, int]) -> bool:
        # Nobody waits for a site whose key was revoked, or has not come yet: it could not prove who it is.
        expected = [client for client in named if nodes.knows(client)]
        return all(client in online for client in expected) if expected else len(online) >= count

    complete = nodes.look(enough, settings.patience)
    if (twice := nodes.twice()) is not None:
        raise RunError(f"two nodes call themselves site {twice}: each needs an id of its own in its site.toml")
    online = nodes.where()
    if not complete and (not named or sum(client in online for client in named) < settings.min_answers):
        raise missing(nodes, named, settings.patience)
    names = named or sorted(online, key=natural_order)
    client_index = ClientIndex(
        tuple(names), None, {split: np.zeros(len(names), np.int64) for split in ("train", "val", "test")}, True
    )
    groups = [nodes.site_info(client).group if client in online else "" for client in names]
    return nodes, ClientIndex(
        client_index.ids, tuple(groups) if any(groups) else None, client_index.sizes, settings.outputs == 1
    )
