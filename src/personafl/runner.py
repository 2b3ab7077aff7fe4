"""The round loop.

sample cohort → send → engine runs clients → aggregate → (evaluate) → events → (checkpoint)
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from personafl import checkpoint
from personafl.algorithms.base import Algorithm, State, Uploads, check
from personafl.engines.base import Engine, Work, torch_threads
from personafl.engines.batches import Ints
from personafl.errors import RunError, TrainingFailed
from personafl.evaluation import client_table, measure, personal_models, summary
from personafl.events import Listener
from personafl.folder import RunFolder
from personafl.predictions import prediction_table
from personafl.store import ClientStore
from personafl.streams import generator

log = logging.getLogger("personafl")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the run stopped after a round, with a checkpoint."""


@dataclass(frozen=True)
class Schedule:
    """How long, how many, how often.

    Parameters
    ----------
    rounds
        Communication rounds.
    activity
        Share C of the clients that are active in a round: max(⌊C·M⌋, 1) of M.
    eval_every, checkpoint_every
        Rounds between evaluations (the last round is always evaluated) and between checkpoints; 0 for only at the end.
    """

    rounds: int = 100
    activity: float = 1.0
    eval_every: int = 10
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        check("rounds", self.rounds, self.rounds >= 1, "at least 1")
        check(
            "activity",
            self.activity,
            0 < self.activity <= 1,
            "in (0, 1]: the share of clients active in a round",
        )
        check("eval_every", self.eval_every, self.eval_every >= 0, "at least 0 (0: only after the last round)")
        check(
            "checkpoint_every",
            self.checkpoint_every,
            self.checkpoint_every >= 0,
            "at least 0 (0: only at the end)",
        )

    def cohort_size(self, clients: int) -> int:
        # The small addition makes 0.29 × 100 the 29 that was meant.
        return max(int(self.activity * clients + 1e-9), 1)

    def cohort(self, seed: int, round: int, clients: int) -> Ints:
        """Who is active in a round: uniform, without replacement, a function of (seed, round)."""
        size = self.cohort_size(clients)
        if size == clients:
            return np.arange(clients)
        drawn = generator(seed, "cohort", round).choice(clients, size, replace=False, shuffle=False)
        return np.sort(drawn).astype(np.int64)


class Runner:
    """Trains one algorithm on one federation, round by round, into a run folder."""

    def __init__(
        self,
        algorithm: Algorithm,
        engine: Engine,
        schedule: Schedule,
        folder: RunFolder,
        manifest: dict[str, Any],
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.algorithm = algorithm = algorithm.prepare(engine.setting)
        self.engine, self.schedule = engine, schedule
        self.folder, self.manifest, self.listeners = folder, manifest, listeners
        clients = len(engine.federation)
        theta0 = engine.task.theta0.to(engine.device)
        self.round = 0
        self.server = algorithm.new_server(theta0, clients)
        self.store = ClientStore(algorithm.new_client(theta0), clients)
        self.steps = np.zeros(clients, np.int64)
        self.active = np.zeros(clients, np.int64)
        self.failed = np.zeros(clients, np.int64)
        self.traffic = {"bytes_up": 0, "bytes_down": 0}
        self._personal: Tensor | None = None
        self._stop = False

    def resume(self) -> bool:
        """Take up the newest undamaged checkpoint; False if there is none (the run starts anew)."""
        found = checkpoint.latest(self.folder.checkpoints)
        if found is not None and found.round > self.schedule.rounds:
            raise RunError(
                f"{self.folder.path} has {found.round} rounds already, more than the {self.schedule.rounds} asked for"
            )
        if found is not None:
            self._restore(found)
            checkpoint.prune(self.folder.checkpoints, self.round)
        self.folder.rewind(self.round)
        return found is not None

    def run(self) -> None:
        """Train up to the last round, then write the models.

        Raises
        ------
        Interrupted
            On Ctrl-C, after the round in flight and a checkpoint. A second Ctrl-C stops at once.
        TrainingFailed
            If every client of a cohort diverged.
        """
        for listener in self.listeners:
            listener.started(self.manifest, self.round)
        try:
            with torch_threads(self.engine.threads), self._interruptible(), torch.no_grad():
                while self.round < self.schedule.rounds:
                    self.step()
                self._write_models()
                self.folder.merge_clients()
        finally:
            for listener in self.listeners:
                listener.ended()

    # --- a round -------------------------------------------------------------------------------------------

    def step(self) -> dict[str, float]:
        """One round; how many seconds its parts took."""
        begun = time.perf_counter()
        round = self.round + 1
        record, seconds = self._train(round)
        self.round = round
        last = round == self.schedule.rounds
        if last or _due(round, self.schedule.eval_every):
            start = time.perf_counter()
            record |= self._evaluate(last)
            seconds["evaluation"] = time.perf_counter() - start
        seconds["round"] = time.perf_counter() - begun
        for listener in self.listeners:
            listener.round_ended(record, seconds)
        if last or self._stop or _due(round, self.schedule.checkpoint_every):
            self._checkpoint()
        if self._stop and not last:
            raise Interrupted
        return seconds

    def _train(self, round: int) -> tuple[dict[str, Any], dict[str, float]]:
        federation = self.engine.federation
        ids = self.schedule.cohort(self.engine.seed, round, len(federation))
        sent = self.algorithm.send(self.server, torch.from_numpy(ids))
        work = Work(self.algorithm, round, "train", ids, self.store.get(ids), sent)
        start = time.perf_counter()
        result = self.engine.run(work)
        seconds = {"clients": time.perf_counter() - start}

        good = _finite({**result.own, **{f"up.{n}": v for n, v in result.up.items()}}, len(ids)).cpu().numpy()
        self.active[ids] += 1
        self.steps[ids] = result.steps.cpu().numpy()
        bad = ids[~good]
        names = [federation.ids[i] for i in bad]
        if len(bad):
            self.failed[bad] += 1
            listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            log.warning("round %d: %d of %d updates are not finite and left out: %s", round, len(bad), len(ids), listed)
        if len(bad) == len(ids):
            raise TrainingFailed(
                f"round {round}: every active client diverged (update not finite; first: {names[0]}); {self._kept()}. "
                "A smaller local.lr usually helps"
            )
        kept = ids[good]
        own, up = result.own, result.up
        if len(bad):
            rows = torch.from_numpy(np.flatnonzero(good)).to(self.engine.device)
            own = {name: value.index_select(0, rows) for name, value in own.items()}
            up = {name: value.index_select(0, rows) for name, value in up.items()}
        self.store.put(kept, own)
        samples = torch.from_numpy(federation.sizes("train")[kept])
        uploads = Uploads(torch.from_numpy(kept), samples.to(self.engine.device), up)
        self.server = self.algorithm.aggregate(self.server, uploads)
        common = self.algorithm.global_model(self.server)
        if common is not None and not torch.isfinite(common.sum()):
            raise TrainingFailed(
                f"round {round}: all updates are finite but their aggregate is not: the models have grown beyond what "
                f"float32 holds. {self._kept()}. A smaller local.lr usually helps"
            )
        self.traffic["bytes_down"] += len(ids) * sent.bytes_per_client()
        self.traffic["bytes_up"] += uploads.bytes()
        record = {
            "round": round,
            "active": len(ids),
            "failed": names,
            "lr": self.engine.local.rate(round),
            "steps": float(self.steps[ids].mean()),
            **self.traffic,
        }
        return record, seconds

    def _kept(self) -> str:
        saved = any(self.folder.checkpoints.glob("round-*.json"))
        return f"the last good checkpoint is kept in {self.folder.checkpoints}" if saved else "no checkpoint yet"

    def _evaluate(self, last: bool) -> dict[str, float]:
        columns, self._personal = measure(self.algorithm, self.engine, self.server, self.store, self.round, last)
        table = client_table(self.engine, self.round, columns, self.steps, self.active, self.failed)
        reported = self.algorithm.report_server(self.server)
        for listener in self.listeners:
            listener.evaluated(self.round, table, reported)
        return summary(table)

    # --- what is kept --------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        tensors = {
            **{f"server.{name}": value for name, value in self.server.items()},
            **{f"store.{name}": value for name, value in self.store.state().items()},
            "theta0": self.engine.task.theta0,
            "steps": torch.from_numpy(self.steps),
            "active": torch.from_numpy(self.active),
            "failed": torch.from_numpy(self.failed),
        }
        checkpoint.save(self.folder.checkpoints, checkpoint.Checkpoint(self.round, tensors, dict(self.traffic)))

    def _restore(self, found: checkpoint.Checkpoint) -> None:
        device = self.engine.device
        parts: dict[str, State] = {"server": {}, "store": {}}
        for name, value in found.tensors.items():
            group, _, rest = name.partition(".")
            if rest:
                parts[group][rest] = value if rest == "slots" else value.to(device)
        self.round, self.server = found.round, parts["server"]
        # Clients that were never active start from the weights that the run began with, not from this process's.
        theta0 = found.tensors["theta0"].to(device)
        self.store = ClientStore(self.algorithm.new_client(theta0), len(self.engine.federation))
        self.store.restore(parts["store"])
        self.steps = found.tensors["steps"].numpy().copy()
        self.active = found.tensors["active"].numpy().copy()
        self.failed = found.tensors["failed"].numpy().copy()
        self.traffic = {name: int(found.values[name]) for name in self.traffic}

    def _write_models(self) -> None:
        task, ids = self.engine.task, self.engine.federation.ids
        common = self.algorithm.global_model(self.server)
        if common is not None:
            self.folder.write_models("global", task.state_dict(common.cpu()), {"format": "pt"})
        if self._personal is None:  # the process that evaluated the last round did not live to write them
            parts = personal_models(self.algorithm, self.engine, self.server, self.store, self.round, last=True)
            self._personal = torch.cat([part.theta.cpu() for part in parts])
        predictions = prediction_table(self.engine, self._personal, common)
        if predictions is not None:
            self.folder.write_predictions(predictions)
        # One key only: safetensors writes several in an order that differs from process to process.
        self.folder.write_models("personal", task.state_dict(self._personal), {"clients": json.dumps(list(ids))})

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C ends the round and saves; the second stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True
            log.warning("stopping after this round (Ctrl-C again to stop at once)")

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _due(round: int, every: int) -> bool:
    return every > 0 and round % every == 0


def _finite(values: State, count: int) -> Tensor:
    """Which rows are finite throughout. A sum is finite only if all of its terms are, and takes one pass."""
    good = torch.ones(count, dtype=torch.bool)
    seen: set[int] = set()
    for value in values.values():
        if value.data_ptr() in seen or not value.is_floating_point():
            continue
        seen.add(value.data_ptr())
        good &= torch.isfinite(value.reshape(count, -1).sum(1)).cpu()
    return good
