"""One secure sum as the server sees it: whom it asks for what, and who is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from personafl.backends.flower.secure.fixed_point import Words
from personafl.backends.flower.secure.masks import Advert, unmasked
from personafl.errors import DataError

Ask = Callable[[str, Mapping[int, dict[str, Any]], Callable[[int, str], None]], dict[int, str]]
"""Sends values of a kind to some clients and takes the text that each answers; who gave none, and why."""


class SecureSum:
    """A sum over some clients.

    Parameters
    ----------
    names
        Of all clients, by their position.
    ask
        How clients are asked.
    threshold
        How many have to stay.

    Attributes
    ----------
    dropped
        Who has gone so far, and why.
    bytes_up
        What clients have sent for it, besides their vectors.
    """

    def __init__(self, names: Sequence[str], ask: Ask, threshold: int) -> None:
        self._names, self._ask, self._threshold = names, ask, threshold
        self._adverts: dict[str, Advert] = {}
        self.dropped: dict[int, str] = {}
        self.bytes_up = 0

    def begin(self, ids: Sequence[int], sites: int) -> dict[int, dict[str, str]]:
        """Have clients make keys and share their secrets: the ciphertexts for each one that did."""
        adverts = self._collect("query.keys", {i: {"sites": sites} for i in ids}, _advert)
        self._require(adverts, "made keys")
        named = {self._names[i]: advert for i, advert in adverts.items()}
        text = json.dumps({name: asdict(advert) for name, advert in named.items()})
        others = {i: named.keys() - {self._names[i]} for i in adverts}
        shared = self._collect("query.shares", {i: {"keys": text} for i in adverts}, lambda i, t: _texts(t, others[i]))
        self._require(shared, "shared their keys")
        self._adverts = {self._names[i]: adverts[i] for i in shared}
        return {i: {self._names[k]: shared[k][self._names[i]] for k in shared if k != i} for i in shared}

    def end(self, vectors: Mapping[int, Words]) -> Words:
        """Have those whose vectors arrived unmask their sum."""
        self._require(vectors, "answered")
        active = [self._names[i] for i in vectors]
        gone = [name for name in self._adverts if name not in active]
        text = json.dumps({"active": active, "gone": gone})
        names = {*active, *gone}
        asked = {i: {"sites": text} for i in vectors}
        gone_before = dict(self.dropped)
        revealed = self._collect("query.unmask", asked, lambda i, t: _texts(t, names))
        self.dropped = gone_before  # whose vector is in the sum has taken part
        self._require(revealed, "helped to unmask")
        enough = list(revealed.values())[: self._threshold]
        shares = {name: [found[name] for found in enough] for name in names}
        return unmasked({self._names[i]: vector for i, vector in vectors.items()}, self._adverts, shares)

    def _collect(self, kind: str, asked: Mapping[int, dict[str, Any]], read: Callable[[int, str], Any]) -> Any:
        found: dict[int, Any] = {}

        def take(i: int, text: str) -> None:
            found[i] = read(i, text)
            self.bytes_up += len(text)

        self.dropped |= self._ask(kind, asked, take)
        return dict(sorted(found.items()))

    def _require(self, left: Mapping[int, Any], what: str) -> None:
        if len(left) < self._threshold:
            raise DataError(f"given up: {len(left)} sites {what}, secure.threshold is {self._threshold}")


def _advert(i: int, text: str) -> Advert:
    return Advert(**_texts(text, {"masks", "shares", "signature"}))


def _texts(text: str, names: set[str]) -> dict[str, str]:
    """A text for each of these names, from JSON of somebody else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.keys() != names or not all(isinstance(v, str) for v in found.values()):
        raise DataError("its part in the secure sum cannot be read")
    return found
