"""A record (`records`) as people read it: a line of plain words for each thing that happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RECORD = "record.jsonl"
_HAPPENED = {
    "introduced": "told the operator who it is",
    "trained": "trained and answered",
    "shared": "did its part in a secure sum",
    "evaluated": "was evaluated and answered",
    "refused": "refused",
    "joined": "joined",
    "received": "answered, and was taken",
    "dropped": "left out",
    "run": "a run began or went on",
    "ended": "a run ended",
    "accepted": "accepted into the federation",
    "revoked": "revoked",
    "rotated": "a key or certificate was renewed",
}
_ASKED = {
    "query": "who it is",
    "train": "an update",
    "train.secure": "a masked update, for a sum",
    "evaluate": "measures",
    "query.keys": "public keys for a sum",
    "query.shares": "shares of its secrets, sealed for the others",
    "query.unmask": "what takes the masks off the sum",
}
"""What an order asks for, by its kind."""
_KEYS = ("site", "node", "asked for", "run", "round", "algorithm", "model", "what", "step", "samples", "key", "folder")


def in_words(line: Mapping[str, Any]) -> str:
    """A line of a record.

    Examples
    --------
    >>> sent = {"theta": {"shape": [650], "bytes": 2600, "norm": 3.5, "sha256": "ab" * 32}, "answer": {"steps": 4}}
    >>> in_words({"time": "2026-11-18T17:00:00+00:00", "event": "trained", "round": "3", "sent": sent})
    '2026-11-18 17:00:00 UTC  trained and answered: round 3; theta (2,600 bytes, norm 3.5, abababababab…), steps 4'
    >>> got = {"answer": {"client": "north", "text": "cd" * 32}}
    >>> in_words({"time": "", "event": "received", "site": "north", "asked": "query.keys", "got": got}).strip()
    'UTC  answered, and was taken: site north, asked for public keys for a sum; text cdcdcdcdcdcd…'
    """
    event = str(line.get("event"))
    when = str(line.get("time"))[:19].replace("T", " ")
    said = {**line, "asked for": _ASKED.get(str(line["asked"]), line["asked"])} if "asked" in line else line
    about = ", ".join(f"{key} {said[key]}" for key in _KEYS if key in said)
    moved = _moved(line.get("sent") or line.get("got") or {})
    why = str(line["reason"]) if "reason" in line else ""
    rest = "; ".join(part for part in (about, moved, why) if part)
    return f"{when} UTC  {_HAPPENED.get(event, event)}{': ' if rest else ''}{rest}"


def _moved(sent: Mapping[str, Any]) -> str:
    """What went from a site to the operator."""
    parts = []
    for name, what in sent.items():
        if isinstance(what, list):
            parts.append(f"metrics ({', '.join(map(str, what)) or 'none'})")
        elif "bytes" in what:
            more = f", norm {what['norm']:g}, {what['sha256'][:12]}…" if "sha256" in what else ""
            parts.append(f"{name} ({what['bytes']:,} bytes{more})")
        else:
            shown = {key: value for key, value in what.items() if key not in ("client", "round") and value != ""}
            for key, value in shown.items():
                if key == "text":  # its hash
                    parts.append(f"text {str(value)[:12]}…")
                elif key != "failed":
                    parts.append(f"{key} {value}")
                elif value:
                    parts.append("training failed")
    return ", ".join(parts)
