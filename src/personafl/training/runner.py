"""The round loop.

sample cohort → send → clients train → aggregate → (evaluate) → events → (checkpoint)
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms.base import Algorithm, Sent, Uploads
from personafl.algorithms.extras import sent_for_evaluation, server_report
from personafl.algorithms.removal import without_clients
from personafl.engines.machine import torch_threads
from personafl.errors import RunError, TrainingFailed
from personafl.metrics.measures import ranking
from personafl.settings import Schedule
from personafl.signals import Interrupted, on_stop
from personafl.states import Ints, State, moved
from personafl.storage import checkpoint
from personafl.storage.client_log import ClientLog
from personafl.storage.folder import RunFolder
from personafl.training.clients import Clients
from personafl.training.early_stopping import check_possible, why_stop
from personafl.training.evaluation import ServerSnapshot, client_table, summary
from personafl.training.events import Listener
from personafl.training.robust import Robust
from personafl.training.server_noise import ServerNoise

log = logging.getLogger("personafl")


class Runner:
    """Trains one algorithm with some clients, round by round, into a run folder."""

    def __init__(
        self,
        algorithm: Algorithm,
        clients: Clients,
        schedule: Schedule,
        folder: RunFolder,
        manifest: dict[str, Any],
        listeners: Sequence[Listener] = (),
        robust: Robust | None = None,
    ) -> None:
        self.algorithm = algorithm = algorithm.prepare(clients.job_info)
        self.clients, self.schedule, self.robust = clients, schedule, robust
        self.folder, self.manifest, self.listeners = folder, manifest, listeners
        self.theta0 = clients.task.theta0.to(clients.device)
        self._made: tuple[int, Tensor | None] | None = None
        count = len(clients.client_index)
        if robust is not None:
            robust.check(algorithm)
            robust.check_cohort(schedule.cohort_size(count))
        self.round = 0
        self.server = algorithm.new_server(self.theta0, count)
        self._server_noise = self._noise_at_server(count)
        self._start()
        self.steps, self.active, self.failed, self.gradients = np.zeros((4, count), np.int64)
        self.traffic = {"bytes_up": 0, "bytes_down": 0}
        self._stop: int | None = None  # the signal that asked for it
        self.stopped = ""  # why the run ends before its last round
        self._scores: list[dict[str, Any]] = []  # the evaluations so far
        check_possible(schedule, clients.client_index.sizes["val"][self._evaluated()])

    def _start(self) -> None:
        """Nobody was active yet."""
        self.clients.start(self.algorithm, self.theta0)
        more = 40 + 8 * (self._server_noise is not None)  # the id, four counters, what was told
        self.log = ClientLog(len(self.clients.client_index), self.clients.row_bytes + more)

    def _noise_at_server(self, count: int) -> ServerNoise | None:
        privacy = self.clients.privacy
        if privacy is None or privacy.noise_at == "clients":
            return None
        cohort = self.schedule.cohort_size(count) if self.clients.secret_cohorts else None
        return ServerNoise(privacy, self.algorithm.uplink, self.clients.server_noise, cohort, np.zeros(count))

    def resume(self) -> bool:
        """Take up the newest undamaged checkpoint; False if there is none (the run starts anew).

        One whose rounds.jsonl, timings.jsonl or evaluations are damaged is of no use; an older one may be.
        """
        damaged: list[str] = []

        def check(found: checkpoint.Checkpoint) -> None:
            try:
                if found.files:
                    self.folder.check(found.round, found.files, found.timings)
            except (ValueError, OSError, RunError) as error:
                damaged.append(str(error))
                raise

        found = checkpoint.latest(self.folder.checkpoints, check=check)
        if found is None and damaged:
            raise RunError(
                f"cannot go on, because {damaged[0]}: put back a copy of it, or delete {self.folder.checkpoints} to "
                "train from round 1 again"
            )
        if found is not None and found.round > self.schedule.rounds:
            raise RunError(
                f"{self.folder.path} has {found.round} rounds already, more than the {self.schedule.rounds} asked for"
            )
        if found is not None:
            self._restore(found)
            checkpoint.prune(self.folder.checkpoints, self.round)
        self.folder.rewind(self.round, *(() if found is None else (found.files or None, found.timings or None)))
        if self.schedule.patience is not None:
            self._resume_stopped()
        return found is not None

    def _resume_stopped(self) -> None:
        """A run that ended early has ended, unless it is asked for more patience now."""
        self._scores, before = self.folder.rounds(), self.folder.begun_manifest()
        asked = before.get("patience"), before.get("min_delta", 0.0)
        if self._scores and asked == (self.schedule.patience, self.schedule.min_delta):
            self.stopped = str(self._scores[-1].get("stopped", ""))

    def run(self) -> None:
        """Train up to the last round, then write the models.

        Raises
        ------
        Interrupted
            On Ctrl-C or SIGTERM, after the round in flight and a checkpoint. A second one stops at once.
        TrainingFailed
            If every client of a cohort diverged.
        """
        for listener in self.listeners:
            listener.started(self.manifest, self.round)
        try:
            with torch_threads(self.clients.threads), on_stop(self._asked_to_stop), torch.no_grad():
                while self.round < self.schedule.rounds and not self.stopped:
                    self.step()
                if self.stopped:
                    self.folder.note("stopped", {"round": self.round, "why": self.stopped})
                self._write_models()
                self.folder.merge_clients()
        finally:
            self.clients.close()
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
            last = last or bool(self.stopped)
            seconds["evaluation"] = time.perf_counter() - start
        seconds["round"] = time.perf_counter() - begun
        for listener in self.listeners:
            listener.round_ended(record, seconds)
        if last or self._stop or _due(round, self.schedule.checkpoint_every):
            self._checkpoint()
        if self._stop and not last:
            raise Interrupted(self._stop)
        return seconds

    def _train(self, round: int) -> tuple[dict[str, Any], dict[str, float]]:
        client_index = self.clients.client_index
        ids = self.schedule.cohort(self.clients.seed, round, len(client_index))
        sent = self.algorithm.send(self.server, torch.from_numpy(ids))
        start = time.perf_counter()
        answers = self.clients.train(round, ids, sent)
        seconds = {"clients": time.perf_counter() - start}

        self.active[answers.active] += 1
        self.steps[answers.active] = answers.steps
        known = self.gradients[answers.active] >= 0
        self.gradients[answers.active] += np.where(known, answers.gradients, 0)
        self.failed[answers.failed] += 1
        self.log.change(answers.active)
        self.log.change(answers.joined)
        failed = [client_index.ids[i] for i in answers.failed]
        if failed:
            log.warning(
                "round %d: %d of %d updates are not finite and left out: %s", round, len(failed), len(ids), _few(failed)
            )
        if failed and len(failed) == len(answers.active):
            raise TrainingFailed(
                f"round {round}: every active client diverged (update not finite; first: {failed[0]}); {self._kept()}. "
                "A smaller local.lr usually helps"
            )
        if len(answers.removed):
            self.server = without_clients(self.algorithm, self.server, self.theta0, len(client_index), answers.removed)
        uploads, spared = self._robust(answers.uploads, ids, sent)
        if len(uploads):
            self.server = self.algorithm.aggregate(self.server, self._with_noise(uploads, round))
        common = self.algorithm.global_model(self.server)
        if common is not None and not torch.isfinite(common.sum()):
            raise TrainingFailed(
                f"round {round}: all updates are finite but their aggregate is not: the models have grown beyond what "
                f"float32 holds. {self._kept()}. A smaller local.lr usually helps"
            )
        self.traffic["bytes_down"] += len(ids) * sent.bytes_per_client()
        self.traffic["bytes_up"] += answers.bytes_up
        record: dict[str, Any] = {
            "round": round,
            "active": len(ids),
            "failed": failed,
            "lr": self.clients.local.rate(round),
            "steps": float(answers.steps.mean()) if len(answers.steps) else 0.0,
            "gradients": int(answers.gradients.sum()),
            **self.traffic,
            **({"robust": spared} if spared else {}),
        }
        if answers.dropped:
            record["dropped"] = {client_index.ids[i]: why for i, why in answers.dropped.items()}
            log.warning("round %d: without %s", round, _few([f"{c} ({why})" for c, why in record["dropped"].items()]))
        return record, seconds

    def _robust(self, uploads: Uploads, ids: Ints, sent: Sent) -> tuple[Uploads, dict[str, float]]:
        """The answers as the robust rule leaves them, and what it multiplied updates by."""
        if self.robust is None or not len(uploads):
            return uploads, {}
        uploads, spared = self.robust.apply(uploads, sent.rows(np.searchsorted(ids, uploads.ids.numpy())))
        named = {self.clients.client_index.ids[i]: round(share, 6) for i, share in spared.items()}
        if named:
            log.info("robust rule %s: %s", self.robust.rule, _few([f"{c} × {share:g}" for c, share in named.items()]))
        return uploads, named

    def _with_noise(self, uploads: Uploads, round: int) -> Uploads:
        """What the server makes of answers before it uses them, and knows of the noise in them."""
        if self._server_noise is not None:
            return self._server_noise.noisy(uploads, round)
        privacy = self.clients.privacy
        return uploads if privacy is None else replace(uploads, noise=privacy.deviation(self.algorithm.uplink))

    def _kept(self) -> str:
        saved = any(self.folder.checkpoints.glob("round-*.json"))
        return f"the last good checkpoint is kept in {self.folder.checkpoints}" if saved else "no checkpoint yet"

    def _evaluate(self, last: bool) -> dict[str, Any]:
        table, prepared = self._measured(last)
        if not last and self._stops_early(table):
            now, at_the_end = (self.algorithm.evaluation_program(last) for last in (False, True))
            if now != at_the_end:  # the models of a last round are others
                table, prepared = self._measured(last=True)
        reported = server_report(self.algorithm, self.server)
        for listener in self.listeners:
            listener.evaluated(self.round, table, reported)
        stopped = {"stopped": self.stopped} if self.stopped else {}
        return (
            summary(table, self.clients.task.kind.measures)
            | ({"evaluation_gradients": prepared} if prepared else {})
            | stopped
        )

    def _measured(self, last: bool) -> tuple[pa.Table, int]:
        """The rows of an evaluation, and the gradients that were computed for it."""
        clients, ids = self.clients, self._evaluated()
        columns = clients.measure(self.snapshot(last), ids)
        if self._server_noise is not None:
            columns["epsilon"] = self._server_noise.epsilon(ids, self.round)
        counts = self.steps, self.active, self.failed, self.gradients
        table = client_table(clients.client_index, clients.task, self.round, columns, *counts, ids)
        return table, int(np.nansum(columns["gradients"]))

    def _stops_early(self, table: pa.Table) -> bool:
        if self.schedule.patience is None:
            return False
        self._scores.append({"round": self.round, **summary(table, self.clients.task.kind.measures)})
        self.stopped = why_stop(self.schedule, ranking(self.clients.task.kind.measures), self._scores)
        if self.stopped:
            log.info("round %d: the run ends here, because %s", self.round, self.stopped)
        return bool(self.stopped)

    def _evaluated(self) -> Ints:
        return self.schedule.evaluated(self.clients.seed, len(self.clients.client_index))

    def snapshot(self, last: bool) -> ServerSnapshot:
        """What clients need of the server now, to make and measure their personalized models."""

        def send(ids: Ints) -> Sent:
            return sent_for_evaluation(self.algorithm, self.server, torch.from_numpy(ids))

        return ServerSnapshot(self.round, last, send, self._common(), self.theta0, self._models_kept())

    def _common(self) -> Tensor | None:
        """The model that serves everybody, for use; made once a round, because its statistics take all data."""
        if self._made is None or self._made[0] != self.round:
            theta = self.algorithm.global_model(self.server)
            self._made = self.round, None if theta is None else self.clients.with_statistics(theta)
        return self._made[1]

    def _models_kept(self) -> NDArray[np.bool_]:
        """Whose personalized models are written: everybody's, or those of clients that were ever active."""
        fits = len(self.active) * self.clients.task.full_size * 4 <= self.schedule.models_mb * 2**20
        return np.ones(len(self.active), np.bool_) if fits else self.active > 0

    # --- what is kept --------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        tensors = {
            **{f"server.{name}": value for name, value in self.server.items()},
            "theta0": self.theta0,
        }
        files, timings = self.folder.extents(), self.folder.timings_extent()
        now = checkpoint.Checkpoint(self.round, tensors, dict(self.traffic), files=files, timings=timings)
        checkpoint.save(self.folder.checkpoints, now, self.log, self._rows)
        self.clients.saved(self.round)

    def _rows(self, ids: Ints) -> State:
        """What a checkpoint keeps of these clients."""
        own = {f"own.{name}": value for name, value in self.clients.rows(ids).items()}
        told = {} if self._server_noise is None else self._server_noise.rows(ids)
        return own | told | {name: torch.from_numpy(count[ids]) for name, count in self._counters.items()}

    @property
    def _counters(self) -> dict[str, Ints]:
        return {"steps": self.steps, "active": self.active, "failed": self.failed, "gradients": self.gradients}

    def _put_rows(self, ids: Ints, rows: State) -> None:
        """The inverse of `_rows`."""
        for name, count in self._counters.items():
            # A checkpoint of an earlier version has no gradients: how many there were is not known, and stays so.
            count[ids] = rows[name].numpy() if name in rows else -1
        if self._server_noise is not None:
            self._server_noise.put_rows(ids, rows)
        own = {name.removeprefix("own."): value for name, value in rows.items() if name.startswith("own.")}
        self.clients.put_rows(ids, own)

    def _restore(self, found: checkpoint.Checkpoint) -> None:
        device = self.clients.device
        server = checkpoint.server_state(found, self.theta0, self.server)
        self.round, self.server = found.round, moved(server, device)
        # Clients that were never active start from the weights that the run began with, not from this process's.
        self.theta0 = found.tensors["theta0"].to(device)
        self._start()
        self.log.read(self.folder.checkpoints, found.clients, self._put_rows)
        self.traffic = {name: found.values.get(name, 0) for name in self.traffic}

    def _write_models(self) -> None:
        common = self._common()
        if common is not None:
            self.folder.write_models("global", self.clients.task.state_dict(common.cpu()), {"format": "pt"})
        self.clients.write(self.folder, self.snapshot(last=True), self._evaluated())

    def _asked_to_stop(self, number: int, frame: Any) -> None:
        """The first time the round ends and is saved; the second time everything stops at once.

        A service that is stopped may tell this process by SIGTERM and its parent, which hands it on by SIGINT: once.
        """
        if self._stop == number:
            raise Interrupted(number, saved=False)
        if self._stop is not None:
            return
        self._stop = number
        again = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        log.warning("stopping after this round (%s again to stop at once)", again)


def _due(round: int, every: int) -> bool:
    return every > 0 and round % every == 0


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
