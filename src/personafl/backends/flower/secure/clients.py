"""Clients at their sites whose answers the server gets only as sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from personafl.algorithms import Sent, Uploads
from personafl.algorithms.extras import TwoSums
from personafl.backends.flower.job import Layout, layout_of, upload_of
from personafl.backends.flower.messages import pack, unpack, values
from personafl.backends.flower.records import TEXT
from personafl.backends.flower.secure.fixed_point import FixedPoint, Floats, Words
from personafl.backends.flower.secure.settings import Secure, code_of
from personafl.backends.flower.secure.sums import SecureSum
from personafl.backends.flower.secure.terms import MASKED, SUM, decoded, means, words
from personafl.backends.flower.server import MOST_STEPS, SPARE, FlowerClients
from personafl.backends.flower.work import gradients_per_step
from personafl.errors import DataError
from personafl.states import Ints, State
from personafl.training.clients import Answers


class SecureClients(FlowerClients):
    """As `FlowerClients`, with secure aggregation: single answers are screened by nobody but the sites themselves."""

    def train(self, round: int, ids: Ints, sent: Sent) -> Answers:
        at = self._find(ids, min(self.settings.min_answers, len(ids)))
        there = [int(i) for i in ids if self.client_index.ids[i] in at]
        each = gradients_per_step(self.algorithm, self.local, self._first(sent), sent.one(0))
        work = SecureRound(self, round, ids, sent, {i: at[self.client_index.ids[i]] for i in there})
        dropped = {int(i): "not there" for i in ids if int(i) not in there}
        try:
            uploads = work.run(there)
            if len(uploads) < self.settings.min_answers:
                raise DataError(f"given up: {len(uploads)} answers, at least {self.settings.min_answers} are needed")
        except DataError as error:
            given_up = {i: str(error) for i in there if i not in work.dropped}
            nobody = Uploads(torch.arange(0), torch.arange(0), {}, self.algorithm.uplink)
            if work.steps and len(work.failed) == len(there):  # everybody's update failed: so has training
                return self._taken(round, nobody, work.failed, each, work.bytes_up, dropped)
            return self._taken(round, nobody, {}, each, work.bytes_up, {**dropped, **given_up, **work.dropped})
        dropped |= work.dropped
        good = set(uploads.ids.tolist())
        steps = {i: count for i, count in work.steps.items() if i in good or i in work.failed}
        return self._taken(round, uploads, steps, each, work.bytes_up, dropped)


class SecureRound:
    """One round: a sum, or two where the second takes what the first gave.

    Attributes
    ----------
    steps
        How many each site took that has trained.
    failed
        The same of those whose update is not finite.
    dropped
        Who is in no sum, and why.
    """

    def __init__(self, clients: FlowerClients, round: int, ids: Ints, sent: Sent, at: Mapping[int, int]) -> None:
        self._clients, self._round, self._sent, self._at = clients, round, sent, at
        self._rows = {int(i): k for k, i in enumerate(ids)}
        self._sites, self._weights = len(ids), self._told_weights(sorted(at))
        assert clients.settings.secure is not None
        self._secure: Secure = clients.settings.secure
        self._code: FixedPoint = code_of(self._secure, clients.algorithm, clients.privacy, self._sites)
        self.steps: dict[int, int] = {}
        self.failed: dict[int, int] = {}
        self.dropped: dict[int, str] = {}
        self.bytes_up = 0

    def run(self, ids: list[int]) -> Uploads:
        """The sums over those of these clients that answer; a DataError where they are too few."""
        clients, algorithm = self._clients, self._clients.algorithm
        own, shared = clients._first(self._sent), self._sent.shared
        up = upload_of(algorithm, clients.local, own, self._sent.one(0))
        layout = layout_of(up)
        extra = {"upload": json.dumps(layout)}
        if not isinstance(algorithm, TwoSums):
            sums, good = self._sum("first", ids, "train.secure", layout, extra)
            found = means(sums, shared, algorithm.uplink, self._of(good), layout)
            return self._uploads(good, {name: value[None] for name, value in found.items()})
        first = algorithm.first_sums(up, self._sent.one(0))
        sums, good = self._sum("first", ids, "train.secure", layout_of(first), extra)
        told = algorithm.tell(sums)
        more = layout_of(algorithm.second_sums(first, told))
        then, good = self._sum("second", good, "query.second", more, {}, told)
        return self._uploads(good, {**sums, **then})

    def _sum(
        self, step: str, ids: list[int], kind: str, layout: Layout, extra: dict[str, Any], told: State | None = None
    ) -> tuple[State, list[int]]:
        total = SecureSum(self._clients.client_index.ids, partial(self._ask, step), self._secure.needed(self._sites))
        try:
            boxes = total.begin(ids, self._sites)
            vectors = self._answers(total, step, kind, words(layout), boxes, extra, told)
            summed = total.end(vectors)
        finally:
            self.bytes_up += total.bytes_up
            self.dropped |= total.dropped
        return decoded(summed, layout, self._of(list(vectors)), self._code), list(vectors)

    def _answers(
        self,
        total: SecureSum,
        step: str,
        kind: str,
        size: int,
        boxes: Mapping[int, dict[str, str]],
        extra: dict[str, Any],
        told: State | None,
    ) -> dict[int, Words]:
        """Have sites train, or do the second step, and take their masked vectors."""
        clients, found = self._clients, dict[int, Words]()
        orders = {}
        for i, box in boxes.items():
            said = {**extra, "step": step, "sites": self._sites, "weight": self._weights[i], "shares": json.dumps(box)}
            if kind == "train.secure":
                orders[i] = clients._order(kind, self._at[i], self._round, i, self._sent, self._rows[i], said)
            else:
                orders[i] = self._message(kind, i, said, {"told": pack(told or {})})
        expected: Layout = {MASKED: (f"int{self._code.bits}", (size,))}

        def take(i: int, reply: RecordDict) -> None:
            said = clients._said(reply, i, self._round, {"steps": int, "failed": bool})
            if not 0 <= said["steps"] <= MOST_STEPS:
                raise DataError(f"{said['steps']} steps cannot be")
            self.steps.setdefault(i, said["steps"])
            if said["failed"]:
                self.failed[i] = said["steps"]
                return
            found[i] = unpack(reply, SUM, expected)[MASKED].numpy().view(self._code.kind)
            self.bytes_up += found[i].nbytes

        total.dropped |= clients.nodes.exchange(orders, clients.client_index.ids, take, clients.settings.round_timeout)
        return dict(sorted(found.items()))

    def _ask(
        self, step: str, kind: str, asked: Mapping[int, dict[str, Any]], take: Callable[[int, str], None]
    ) -> dict[int, str]:
        clients = self._clients
        orders = {i: self._message(kind, i, {"step": step, **said}) for i, said in asked.items()}

        def read(i: int, reply: RecordDict) -> None:
            clients._said(reply, i, self._round, {})
            take(i, values(reply, "answer", {TEXT: str})[TEXT])

        return clients.nodes.exchange(orders, clients.client_index.ids, read, clients.settings.round_timeout)

    def _message(self, kind: str, i: int, said: dict[str, Any], more: dict[str, Any] | None = None) -> Message:
        clients, name = self._clients, self._clients.client_index.ids[i]
        order = ConfigRecord({"job": clients.job.text(), "client": name, "round": self._round, **said})
        signed = clients.nodes.sign(RecordDict({"order": order, **(more or {})}), kind, name, clients.job.run)
        ttl = clients.settings.round_timeout + SPARE
        return Message(signed, self._at[i], kind, ttl=ttl, group_id=str(self._round))

    def _told_weights(self, ids: list[int]) -> dict[int, float]:
        """What each site is told to weigh: its samples within `max_weight`, the largest as 1."""
        samples = torch.from_numpy(self._clients.client_index.sizes["train"][ids]).double()
        limited = Uploads(samples, samples, {}, {}, most=self._clients.settings.max_weight).limit(samples)
        shares = limited / limited.max()
        return {int(i): float(share) for i, share in zip(ids, shares, strict=True)}

    def _of(self, ids: list[int]) -> Floats:
        return np.array([self._weights[i] for i in ids])

    def _uploads(self, ids: list[int], sums: State) -> Uploads:
        weights = torch.from_numpy(self._of(ids))
        group = torch.tensor([[float(weights.sum()), float(len(ids))]])
        return Uploads(torch.tensor(ids), weights, sums, self._clients.algorithm.uplink, group)
