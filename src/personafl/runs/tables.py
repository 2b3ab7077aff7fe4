"""What a run folder says in tables: rounds, clients, predictions, scores and what they are measured by."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from personafl.errors import ConfigError, RunError
from personafl.metrics.measures import ACCURACY, Measure, measures_in, ranking
from personafl.runs.frames import Frame, as_frame
from personafl.storage.folder import RunFolder
from personafl.training.evaluation import WHO

NO_SCORE = "nothing was scored: no client has test samples; give splits with a share for test"

log = logging.getLogger("personafl")


class RunTables:
    """The tables of a run folder; `Run` adds the models."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.path = folder, folder.path
        self.manifest: dict[str, Any] = folder.manifest()
        self._warned = False  # that nothing was scored

    @property
    def complete(self) -> bool:
        """Whether training ended and the models are there, or at the sites that they belong to."""
        return self.folder.complete

    @overload
    def rounds(self, frame: None = None) -> list[dict[str, Any]]: ...

    @overload
    def rounds(self, frame: Frame) -> Any: ...

    def rounds(self, frame: Frame | None = None) -> Any:
        """The records of rounds.jsonl, a dictionary each.

        Parameters
        ----------
        frame
            `pandas`, `polars` or `arrow`: a row for each round instead.
        """
        return as_frame(self.folder.rounds(), frame)

    def clients(self, round: int | None = None, frame: Frame | None = None) -> pa.Table:
        """A row for each client: sizes, its values of metrics, steps and what the algorithm reports.

        Parameters
        ----------
        round
            Which evaluation; left out, the last one.
        frame
            `pandas` or `polars`; left out, a pyarrow table.
        """
        table = self.folder.clients()
        known = sorted(set(table.column("round").to_pylist()))
        if round is not None and round not in known:
            raise RunError(f"{self.path} has no evaluation of round {round}; there are {', '.join(map(str, known))}")
        table = table.filter(pc.equal(table.column("round"), known[-1] if round is None else round))
        for who in ("global", "personal"):
            if f"{who}_correct" in table.column_names:
                hits, n = table.column(f"{who}_correct"), table.column("n_test")
                share = pc.divide(pc.cast(hits, pa.float64()), pc.if_else(pc.equal(n, 0), None, n))
                table = table.add_column(6, f"{who}_accuracy", share)
        return as_frame(table, frame)

    def predictions(self, frame: Frame | None = None) -> pa.Table | None:
        """A row for each test sample, see `personafl.training.predictions`; None for a run that keeps none.

        Parameters
        ----------
        frame
            As in `clients`.
        """
        found = self.folder.predictions()
        return None if found is None else as_frame(found, frame)

    @property
    def score(self) -> dict[str, float]:
        """The last evaluation in one number each, over all samples: metrics and losses, see `measures`.

        What nobody has data for is left out.
        """
        found = self._scores(self._evaluation())
        if not found:
            self.folder.clients()  # raises where nothing was evaluated yet
        if not _on_test_data(found) and not self._warned:
            log.warning("%s: %s", self.path, NO_SCORE)
            self._warned = True
        return found

    def _evaluation(self) -> dict[str, Any]:
        """The last record of a round that has scores."""
        return next((record for record in reversed(self.rounds()) if self._scores(record)), {})

    def _scores(self, record: Mapping[str, Any]) -> dict[str, float]:
        names = ("accuracy", "loss", *(measure.name for measure in self.measures))
        wanted = {f"{who}_{name}" for who in WHO for name in names}
        return {key: value for key, value in record.items() if key in wanted and value is not None}

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What models of this run are compared by, the first one first; a run of an earlier version has the accuracy.

        The columns of `clients` and the keys of `score` are these names, behind `personal_` and `global_`.
        """
        if "metrics" not in self.manifest.get("resolved", {}):
            return (ACCURACY,) if self._counts_right_answers() else ()
        try:
            return measures_in(self.manifest)
        except (ConfigError, ValueError, TypeError) as error:
            raise RunError(f"{self.path}/run.toml: resolved.metrics cannot be read: {error}") from error

    def _counts_right_answers(self) -> bool:
        try:
            return "personal_correct" in self.folder.clients().column_names
        except RunError:  # nothing was evaluated yet
            return False

    @property
    def primary(self) -> Measure:
        """The measure that ranks."""
        return ranking(self.measures)

    @property
    def seconds(self) -> float:
        """Time spent in rounds, evaluations included."""
        return float(sum(record["round_seconds"] for record in self.folder.timings()))


def _on_test_data(scores: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in scores.items() if "_val_" not in key and "_held_" not in key}
