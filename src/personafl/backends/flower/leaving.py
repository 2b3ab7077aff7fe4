"""The last thing that happens to an answer at a site: it is looked at once more, and put on record."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from personafl.backends.flower.messages import HEADER, plain
from personafl.backends.flower.policy import check_outgoing
from personafl.backends.flower.records import METRICS, Record, sent_in
from personafl.backends.flower.secure.terms import MASKED, SUM
from personafl.backends.flower.signed_files import sign_models
from personafl.backends.flower.site import Site
from personafl.files import checksum

EVENTS = {"query": "introduced", "train": "trained", "train.secure": "trained", "evaluate": "evaluated"}
"""What happened, by the kind of an order; the others are about the keys and masks of a secure sum."""


def released(site: Site, kind: str, order: RecordDict, work: Callable[[], RecordDict]) -> RecordDict:
    """An answer that may leave its site and is on record there; so is an error that keeps it from leaving."""
    if site.simulated:
        return work()
    record, about = Record(Path(site.settings.folder)), _asked(kind, order)
    try:
        answer = work()
        check_leaving(site, answer)
    except Exception as error:
        record.note("refused", **about, reason=plain(str(error) or type(error).__name__))
        raise
    if site.settings.policy is not None:
        about["policy"] = checksum(Path(site.settings.policy))
    if site.settings.key is not None and kind == "evaluate":
        sign_models(site.settings.models, Path(site.settings.key), site.settings.id)
    record.note(EVENTS.get(kind, "shared"), **about, sent=sent_in(answer))
    return answer


def check_leaving(site: Site, answer: RecordDict) -> None:
    """Refuse, at the last moment, arrays that may not leave, whatever made them."""
    if site.policy is None or site.policy.outgoing is None:
        return
    for name, record in answer.items():
        if isinstance(record, ArrayRecord):
            sizes = {key: max(len(array.data) - HEADER, 0) for key, array in record.items()}
            allowed = dict.fromkeys(sizes, 8) if name == METRICS else site.policy.outgoing
            if name == SUM:  # `check_upload` has seen what is in it: nothing else, in twice the bytes and a few scalars
                allowed = {MASKED: 2 * sum(site.policy.outgoing.values()) + 64}
            check_outgoing(allowed, site.settings.id, sizes)


def _asked(kind: str, order: RecordDict) -> dict[str, Any]:
    """What an order says it is about, as far as it can be read: nothing of it has been checked."""
    said = order.get("order")
    if not isinstance(said, ConfigRecord):
        return {"asked": kind}
    try:
        job = json.loads(str(said.get("job")))
        names = {key: plain(str((job.get(key) or {}).get("name", "")), 80) for key in ("algorithm", "model")}
        run = sha256(json.dumps({**job, "groups": None}, sort_keys=True).encode()).hexdigest()[:16]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {"asked": kind}
    return {"asked": kind, "run": run, "round": plain(str(said.get("round")), 20), **names}
