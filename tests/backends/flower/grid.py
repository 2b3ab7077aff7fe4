"""A Flower grid in this process: real apps, real messages that travel as bytes, and faults on demand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np
import tomli_w
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from personafl.backends.flower.app import client_app
from personafl.federation import Federation


@dataclass
class Node:
    """A SuperNode. What it hears and says goes through `hears` and `says`, which may change or swallow it (None)."""

    site: Path
    app: ClientApp = client_app
    hears: Callable[[Message], Message | None] = lambda message: message
    says: Callable[[Message], Message | None] = lambda message: message
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.context = Context(1, 0, {"site": str(self.site)}, RecordDict(), {})


class MemoryGrid(Grid):
    """Nodes by id. `left` has the bytes of what left the sites, as (site file, message type, bytes)."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self.nodes = nodes
        self.left: list[tuple[Path, str, bytes]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=1)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self._deliver(travelled(message)[0])
        return ids

    def _deliver(self, message: Message) -> None:
        node = self.nodes[message.metadata.dst_node_id]
        heard = node.hears(message)
        if heard is None:
            return
        try:
            reply = node.says(node.app(heard, node.context))
        except Exception as error:  # as a SuperNode does
            reply = Message(Error(2, str(error)), reply_to=heard)
        if reply is not None:
            arrived, data = travelled(reply)
            self.left.append((node.site, message.metadata.message_type, data))
            self._replies[message.metadata.message_id] = arrived

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(message) for message in message_ids if message in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))


def travelled(message: Message) -> tuple[Message, bytes]:
    """A message at its destination, and the bytes that it was on the way."""
    data = message_to_proto(message).SerializeToString()
    return message_from_proto(ProtoMessage.FromString(data)), data


def write_site(folder: Path, client: str, federation: Federation, **more) -> Path:
    """A site with the data of one client of a federation."""
    folder.mkdir(parents=True)
    parts = {split: pair for split, pair in federation.client(client).items() if len(pair[0])}
    arrays = {f"{what}_{split}": pair[k].numpy() for split, pair in parts.items() for k, what in enumerate("xy")}
    np.savez(folder / "data.npz", **arrays)
    table = {"id": client, "data": "data.npz", "folder": ".", **more}
    if federation.groups is not None:
        table["group"] = federation.groups[federation.index(client)]
    (folder / "site.toml").write_text(tomli_w.dumps(table))
    return folder / "site.toml"


def sites_of(folder: Path, federation: Federation, **more) -> dict[int, Node]:
    """A node for each client, in an order that is not that of their names; they have few samples, and allow for it."""
    table = {"least_batch_size": 1, "least_samples": 1, **more}
    made = {client: Node(write_site(folder / client, client, federation, **table)) for client in federation.ids}
    return {1000 + (7 * k) % 101: node for k, node in enumerate(reversed(made.values()))}
