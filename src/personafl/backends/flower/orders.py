"""What a site reads from an order of the server, checked."""

from __future__ import annotations

import json

from flwr.app import RecordDict

from personafl.algorithms.base import Sent
from personafl.backends.flower.job import Layout, Order, Together, read_job
from personafl.backends.flower.messages import unpack, values
from personafl.errors import ConfigError


def read_order(site: str, content: RecordDict, together: Together | None = None) -> Order:
    """What a site is to do; refused where it is meant for another one, or cannot be."""
    said = values(content, "order", {"job": str, "client": str, "round": int, "accepted": int, "durable": int})
    check_receiver(site, said["client"])
    if not 0 <= min(said["accepted"], said["durable"]) or said["accepted"] > said["round"] or said["round"] < 1:
        raise ConfigError(f"round {said['round']} after {said['accepted']} and {said['durable']} cannot be")
    return Order(
        read_job(said["job"]),
        said["round"],
        said["accepted"],
        said["durable"],
        Sent(unpack(content, "shared"), unpack(content, "each")),
        unpack(content, "theta0")["theta0"] if "theta0" in content else None,
        together,
    )


def check_receiver(site: str, client: str) -> None:
    """Refuse what is meant for another site."""
    if client != site:
        raise ConfigError(f"the message is for {client[:80]!r}, this is site {site}")


def read_layout(content: RecordDict) -> Layout:
    """What the server wants to get."""
    try:
        found = json.loads(values(content, "order", {"upload": str})["upload"])
        return {name: (str(kind), tuple(map(int, shape))) for name, (kind, shape) in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigError("the server does not say what it wants to get") from None
