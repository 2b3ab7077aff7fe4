"""What goes on record: who joined, what ran, what was sent (names, sizes, norms, hashes), and what was refused.

A site and the operator each have a `record.jsonl` of their own, a `ChainedLog`. A site's line is on its disk before the
answer leaves; the operator's says what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor

from personafl.backends.flower.messages import unpack
from personafl.backends.flower.record_words import RECORD
from personafl.errors import DataError
from personafl.storage.chained_log import ChainedLog

TEXT = "text"
"""The value of an answer that has keys or shares of a secure sum."""
METRICS = "columns"
"""The record of an answer that has metrics: a number each, and not the arrays that `outgoing` of a policy is about."""


class Record:
    """A record of what happened, of a site or of an operator.

    Parameters
    ----------
    folder
        Where `record.jsonl` is; None for a record that is not kept, as in simulations.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @cached_property
    def log(self) -> ChainedLog | None:
        """The file behind it."""
        return None if self._folder is None else ChainedLog(self._folder / RECORD)

    def note(self, event: str, **about: Any) -> None:
        """Write down that something happened."""
        if self.log is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self.log.add({"time": now, "event": event, **about})

    def answer(
        self, event: str, site: str, order: Message, answer: RecordDict | None = None, reason: str | None = None
    ) -> None:
        """Write down what became of an order, with what came back."""
        if self.log is not None:
            about: dict[str, Any] = {"site": site, "asked": order.metadata.message_type}
            about |= {"round": order.metadata.group_id} if order.metadata.group_id else {}
            about |= {} if reason is None else {"reason": reason}
            self.note(event, **about, **({} if answer is None else {"got": sent_in(answer)}))


def arrays(state: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Tensors as a record names them: never a value, but how long each vector is and what would prove it.

    >>> arrays({"theta": torch.tensor([3.0, 4.0])})["theta"]["norm"]
    5.0
    """
    return {
        name: {
            "shape": list(value.shape),
            "bytes": value.numel() * value.element_size(),
            "norm": float(f"{float(torch.linalg.vector_norm(value.double())):.6g}"),
            "sha256": sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest(),
        }
        for name, value in state.items()
    }


def sent_in(answer: RecordDict) -> dict[str, Any]:
    """What leaves: arrays by what `arrays` says of them, values as they are."""
    out: dict[str, Any] = {}
    for name, record in answer.items():
        if name == METRICS:
            out[name] = sorted(record)
        elif isinstance(record, ArrayRecord):
            out |= _arrays(answer, name)
        elif name != "seal":
            # The keys and shares of a secure sum are secrets, or long; which they were can be proven.
            out[name] = {key: _digest(value) if key == TEXT else value for key, value in record.items()}
    return out


def _digest(value: object) -> str:
    return sha256(str(value).encode()).hexdigest()


def _arrays(answer: RecordDict, name: str) -> dict[str, Any]:
    try:
        return arrays(unpack(answer, name))
    except DataError:  # nothing that a server would take
        return {key: {"bytes": len(array.data)} for key, array in answer[name].items()}
