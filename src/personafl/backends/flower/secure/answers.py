"""What a site answers in a secure sum: the handlers of its ClientApp."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load_file

from personafl.algorithms import Algorithm
from personafl.algorithms.extras import TwoSums
from personafl.backends.flower.job import JobDescription, Together, read_job
from personafl.backends.flower.messages import pack, unpack, values
from personafl.backends.flower.orders import check_receiver, read_layout, read_order
from personafl.backends.flower.records import TEXT
from personafl.backends.flower.secure.masks import Advert
from personafl.backends.flower.secure.member import Member
from personafl.backends.flower.secure.settings import Secure, check_secure, code_of
from personafl.backends.flower.secure.terms import MASKED, SUM, encoded, weighted
from personafl.backends.flower.site import Site
from personafl.errors import ConfigError
from personafl.files import write_tensors
from personafl.registry import checked
from personafl.states import State


class Asked:
    """A message of a secure sum, checked, and what this site has of the sum."""

    def __init__(self, site: Site, content: RecordDict, **kinds: type) -> None:
        here = self.here = site.settings
        self.said = values(content, "order", {"job": str, "client": str, "round": int, "step": str, **kinds})
        check_receiver(here.id, self.said["client"])
        self.job: JobDescription = read_job(self.said["job"])
        found: Secure | None = checked(Secure | None, "secure", self.job.secure)
        if found is None:
            raise ConfigError(f"site {here.id}: this run has no [secure], and is asked for a part in a secure sum")
        self.secure, self.algorithm = found, self.job.make_algorithm()
        self.folder = here.states / self.job.run
        key, members = (None if path is None else Path(path) for path in (here.key, here.members))
        self.member = Member(here.id, self.folder, key, members)
        self.label = json.dumps([self.job.run, self.said["round"], self.said["step"]])

    def answer(self, text: Any = None, **more: Any) -> ConfigRecord:
        """Who answers, and to what."""
        said = {} if text is None else {TEXT: json.dumps(text)}
        return ConfigRecord({"client": self.here.id, "round": self.said["round"], **said, **more})

    def texts(self, name: str) -> dict[str, Any]:
        """A table of the message."""
        try:
            found = json.loads(self.said[name])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ConfigError(f"site {self.here.id}: {name} of a secure sum cannot be read")
        return found


def keys(site: Site, content: RecordDict) -> RecordDict:
    """New keys, where this site takes part in such a sum."""
    asked = Asked(site, content, sites=int)
    sites = asked.said["sites"]
    check_secure(asked.secure, asked.algorithm, sites, asked.job.make_privacy())
    advert = asked.member.make_keys(asked.label, sites, asked.secure.needed(sites))
    return RecordDict({"answer": asked.answer(asdict(advert))})


def shares(site: Site, content: RecordDict) -> RecordDict:
    """This site's secrets in shares for the others."""
    asked = Asked(site, content, keys=str)
    try:
        adverts = {name: checked(Advert, "keys", advert) for name, advert in asked.texts("keys").items()}
        made = asked.member.share(asked.label, adverts, asked.secure.colluders)
    except ValueError as error:  # no keys
        raise ConfigError(f"site {asked.here.id} was sent keys that are none: {str(error)[:80]}") from None
    return RecordDict({"answer": asked.answer(made)})


def train(site: Site, content: RecordDict) -> RecordDict:
    """Train, and give the masked terms of a sum."""
    asked = _with_shares(site, content)
    sites, weight = asked.said["sites"], asked.said["weight"]
    secure = asked.secure
    by_samples = any(how.weights == "samples" for how in asked.algorithm.uplink.values())
    together = Together(secure.needed(sites), secure.noise_sharers(sites), weight if by_samples else 1.0)
    order = read_order(site.settings.id, content, together)
    trained = site.train(order, read_layout(content))
    answer = asked.answer(steps=trained.steps, failed=trained.failed)
    if trained.failed:
        return RecordDict({"answer": answer})
    algorithm, sent = asked.algorithm, order.sent.one(0)
    if isinstance(algorithm, TwoSums):
        terms = algorithm.first_sums(trained.up, sent)
        for old in asked.folder.glob("first-*.tmp.safetensors"):  # of rounds that this site left halfway
            old.unlink()
        write_tensors(_first(asked), terms)
    else:
        terms = weighted(trained.up, order.sent.shared, algorithm.uplink, weight)
    return _masked(asked, answer, terms)


def second(site: Site, content: RecordDict) -> RecordDict:
    """Give the masked terms of the second sum."""
    asked = _with_shares(site, content)
    algorithm = asked.algorithm
    if not isinstance(algorithm, TwoSums):
        raise ConfigError(f"site {asked.here.id}: {algorithm.name} has one sum in a round, not two")
    try:
        first = load_file(_first(asked))
    except (OSError, SafetensorError):
        raise ConfigError(f"site {asked.here.id} has not trained in round {asked.said['round']}") from None
    told = unpack(content, "told")
    if told.keys() != algorithm.tell(first).keys() or not all(bool(torch.isfinite(v).all()) for v in told.values()):
        raise ConfigError(f"site {asked.here.id} was told other numbers than {algorithm.name} has between its sums")
    made = _masked(asked, asked.answer(steps=0, failed=False), algorithm.second_sums(first, told))
    _first(asked).unlink(missing_ok=True)
    return made


def unmask(site: Site, content: RecordDict) -> RecordDict:
    """Shares of others' secrets, as the sum of those who are left needs them."""
    asked = Asked(site, content, sites=str)
    named = asked.texts("sites")
    active, gone = (named.get(key) for key in ("active", "gone"))
    if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in (active, gone)):
        raise ConfigError(f"site {asked.here.id} is not told whom to unmask")
    return RecordDict({"answer": asked.answer(asked.member.reveal(asked.label, active or [], gone or []))})


ANSWERS: dict[str, Callable[[Site, RecordDict], RecordDict]] = {
    "query.keys": keys,
    "query.shares": shares,
    "train.secure": train,
    "query.second": second,
    "query.unmask": unmask,
}
"""The handlers by the kind of a message."""


def _with_shares(site: Site, content: RecordDict) -> Asked:
    asked = Asked(site, content, sites=int, weight=float, shares=str)
    here, weight = asked.here, asked.said["weight"]
    if not 0 < weight <= 1:
        raise ConfigError(f"site {here.id}: a weight of {weight:g} cannot be, it is above 0 and at most 1")
    asked.member.begin_masking(asked.label, asked.texts("shares"), asked.said["sites"])
    return asked


def _masked(asked: Asked, answer: ConfigRecord, terms: State) -> RecordDict:
    algorithm: Algorithm = asked.algorithm
    code = code_of(asked.secure, algorithm, asked.job.make_privacy(), asked.said["sites"])
    try:
        vector = encoded(terms, asked.said["weight"], code)
    except ConfigError as error:
        raise ConfigError(f"site {asked.here.id}: {error}") from None
    masked = asked.member.mask(asked.label, vector)
    signed = masked.view(f"int{code.bits}")  # what torch and Flower know
    return RecordDict({"answer": answer, SUM: pack({MASKED: torch.from_numpy(signed)})})


def _first(asked: Asked) -> Path:
    """What was added to the first of two sums."""
    return asked.folder / f"first-{asked.said['round']:06d}.tmp.safetensors"
