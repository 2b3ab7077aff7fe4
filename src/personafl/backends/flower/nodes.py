"""Which node of a Flower grid is which site.

Node ids say nothing, and a site that was away may come back with another one. So every node that is new is asked who it
is, and everything else goes by the sites' own names.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from personafl.backends.flower.messages import plain, values
from personafl.backends.flower.records import Record
from personafl.backends.flower.replies import Replies
from personafl.backends.flower.signing import OperatorSeal
from personafl.errors import DataError, RunError
from personafl.inputs import Shape, parts, read_shape

log = logging.getLogger("personafl")

ANSWER = 60.0
"""Seconds that a node has to say who it is; then, and when it was refused, it is asked again after this time."""
SITE_INFO = {
    "client": str, "group": str, "train": int, "val": int, "test": int, "classes": int, "outputs": int, "inputs": str,
    "personafl": str, "torch": str, "python": str,
}  # fmt: skip
SIZES = 2**40


@dataclass(frozen=True)
class SiteInfo:
    """How a site introduces itself, see `Site.introduce`."""

    client: str
    group: str
    train: int
    val: int
    test: int
    classes: int
    outputs: int
    shape: Shape
    dtype: str | dict[str, str]
    personafl: str
    torch: str
    python: str


class Nodes:
    """The sites that are there.

    Parameters
    ----------
    check
        Raises a DataError where a site cannot take part in this run.
    seal
        Signs what is asked, and checks who answers. A simulation has none.
    record
        Where it is written down who joined, answered and was refused; left out, nowhere.
    """

    def __init__(
        self,
        grid: Grid,
        check: Callable[[SiteInfo], None],
        seal: OperatorSeal | None = None,
        record: Record | None = None,
    ) -> None:
        self.grid, self.replies, self._seal = grid, Replies(grid), seal
        self._record = record or Record(None)
        self.infos: dict[int, SiteInfo] = {}
        self.refused: dict[int, str] = {}
        self._check = check
        self._asked: dict[int, tuple[str, float]] = {}  # node: the question's id, and when it was asked
        self._questions: dict[int, RecordDict] = {}
        self._online: set[int] = set()
        self._at: dict[str, int] = {}

    def where(self) -> dict[str, int]:
        """The node of each site that is there. Of two that claim the same name, the one that was there first."""
        self._at = {c: node for c, node in self._at.items() if node in self._online and self.knows(c)}
        for node, info in self.infos.items():
            if node in self._online and self.knows(info.client) and self._at.setdefault(info.client, node) != node:
                self._refuse(node, f"another node is site {info.client} already: each needs an id of its own")
        return dict(self._at)

    def site_info(self, client: str) -> SiteInfo:
        """How a site that is there introduced itself."""
        return self.infos[self._at[client]]

    def knows(self, client: str) -> bool:
        """Whether the operator has the key of a site now; without keys, everybody is who they say."""
        return self._seal is None or self._seal.knows(client)

    def revoked(self, client: str) -> bool:
        """Whether a site was in the federation and is no more."""
        return self._seal is not None and self._seal.revoked(client)

    def absent(self, client: str) -> str:
        """Why a site that is not there has no part in a round."""
        if self.revoked(client):
            return "its key was revoked"
        return "not there" if self.knows(client) else "the operator has no key of it"

    def twice(self) -> str | None:
        """A name that two nodes claim at the same time."""
        claims = [info.client for node, info in self.infos.items() if node in self._online]
        return next((client for client in claims if claims.count(client) > 1), None)

    def look(self, enough: Callable[[dict[str, int]], bool], patience: float) -> bool:
        """Find out who is there, until it is enough or for so many seconds; whether it is enough."""
        end, pause = time.monotonic() + patience, 0.05
        while True:
            self._ask()
            self._listen()
            if enough(self.where()):
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(min(pause, max(end - time.monotonic(), 0.0)))
            pause = min(1.5 * pause, 2.0)

    @property
    def expecting(self) -> bool:
        """Whether somebody who is there has yet to say who it is."""
        now = time.monotonic()
        return any(q and n in self._online and now < t + ANSWER for n, (q, t) in self._asked.items())

    def sign(self, order: RecordDict, kind: str, to: str, run: str = "") -> RecordDict:
        """An order as it is sent, signed where the operator has a key."""
        if self._seal is not None:
            self._seal.sign(order, kind, to, run)
        return order

    def heard(self, reply: Message, client: str, order: RecordDict) -> RecordDict:
        """What a site answers to an order; a DataError where it says why not, or where somebody else answers."""
        found = content(reply)
        self._verify(reply, client, order)
        return found

    def exchange(
        self,
        orders: Mapping[int, Message],
        clients: Sequence[str],
        take: Callable[[int, RecordDict], None],
        timeout: float,
    ) -> dict[int, str]:
        """Send the i-th client its message and take the answers that come in time; who gave none, and why.

        Parameters
        ----------
        orders
            A message for each position among `clients` that is asked.
        take
            Called with the position and the answer; a DataError of it drops the answer.
        timeout
            Seconds that all have to answer.
        """
        dropped: dict[int, str] = {}
        waiting: dict[int, str] = {}
        for i, order in orders.items():  # one at a time: a model for each of them need not be in memory twice
            question = next(iter(self.grid.push_messages([order])), None)
            if question:
                waiting[i] = question
            else:
                dropped[i] = "Flower did not take the message"
        end, pause = time.monotonic() + timeout, 0.02
        while waiting and time.monotonic() < end:
            for i, question in list(waiting.items()):
                try:
                    if not self.knows(clients[i]):
                        raise DataError(self.absent(clients[i]))
                    for reply in self.replies.to(question):
                        del waiting[i]
                        take(i, self.heard(reply, clients[i], orders[i].content))
                        self._record.answer("received", clients[i], orders[i], reply.content)
                except DataError as error:
                    waiting.pop(i, None)
                    dropped[i] = plain(str(error))
            if waiting:
                time.sleep(pause)
                pause = min(1.5 * pause, 1.0)
        dropped |= {i: f"no answer within {timeout:g} s" for i in waiting}
        for i, why in dropped.items():
            self._record.answer("dropped", clients[i], orders[i], reason=why)
        return dropped

    def _verify(self, reply: Message, client: str, order: RecordDict) -> None:
        if self._seal is not None:
            self._seal.check(reply.content, client, order)

    def _ask(self) -> None:
        self._online, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in sorted(self._online - set(self.infos)):
            if node in self._asked and now < self._asked[node][1] + ANSWER:
                continue
            self._questions[node] = self.sign(RecordDict(), "query", f"node {node}")
            question = Message(self._questions[node], node, "query", ttl=10 * ANSWER)
            self._asked[node] = next(iter(self.grid.push_messages([question]))), now

    def _listen(self) -> None:
        for node, (question, when) in list(self._asked.items()):
            if node in self.infos or not question:
                continue
            try:
                for reply in self.replies.to(question):
                    self._asked[node] = "", when
                    info = _site_info(content(reply))
                    self._verify(reply, info.client, self._questions[node])
                    self._check(info)
                    self.infos[node] = info
                    self.refused.pop(node, None)
                    log.info("site %s is here: %d training samples", info.client, info.train)
                    self._record.note("joined", site=info.client, node=str(node), samples=info.train)
            except DataError as error:
                self._asked[node] = "", when
                self._refuse(node, str(error))

    def _refuse(self, node: int, why: str) -> None:
        why = plain(why)
        if self.refused.get(node) != why:
            log.warning("node %d is refused: %s", node, why)
            self._record.note("refused", node=str(node), reason=why)
        self.refused[node] = why


def content(reply: Message) -> RecordDict:
    """What a reply holds; a DataError where it says why not."""
    if reply.has_error():
        code = reply.error.code
        raise DataError({5: "its node is not reachable", 8: "its process broke down"}.get(code, f"Flower error {code}"))
    if "refused" in reply.content:
        raise DataError(plain(values(reply.content, "refused", {"reason": str})["reason"]))
    return reply.content


def _site_info(content: RecordDict) -> SiteInfo:
    found: dict[str, Any] = values(content, "site_info", SITE_INFO)
    # The name has to be right as it is: it is what sites are known by.
    found |= {key: plain(found[key], 200) for key, kind in SITE_INFO.items() if kind is str and key != "client"}
    if not found["client"].isprintable() or not 0 < len(found["client"]) <= 200:
        raise DataError("it has no name of 1 to 200 characters")
    if not all(0 <= found[split] < SIZES for split in ("train", "val", "test")):
        raise DataError(f"site {found['client']} has numbers of samples that cannot be")
    return SiteInfo(**_inputs(str(found.pop("inputs")), found["client"]), **found)


def _inputs(text: str, client: str) -> dict[str, Any]:
    """Shape and type of a sample, or of each of its inputs by name."""
    try:
        found = json.loads(text)
        shape, dtype = read_shape(found["shape"]), found["dtype"]
        sizes = [size for each in parts(shape).values() for size in each]
        alike = isinstance(dtype, dict) == isinstance(shape, dict) and parts(shape).keys() == parts(dtype).keys()
        if not alike or not all(type(kind) is str for kind in parts(dtype).values()):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(f"site {client} does not say what its samples are") from None
    if not all(type(size) is int for size in sizes):
        raise DataError(f"site {client} has samples whose shape is not made of numbers")
    return {"shape": shape, "dtype": dtype}


def missing(nodes: Nodes, wanted: Iterable[str], waited: float) -> RunError:
    """The error for sites that did not come."""
    online = nodes.where()
    absent = [client for client in wanted if client not in online]
    refused = "; ".join(why for node, why in sorted(nodes.refused.items()))
    text = f"waited {waited:g} s for the sites: {len(online)} there ({', '.join(sorted(online)) or 'nobody'})"
    text += f", without {', '.join(absent)}" if absent else ""
    return RunError(text + (f"; refused: {refused}" if refused else ""))
