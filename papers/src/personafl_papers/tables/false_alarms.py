"""Relative false alarms of wake-word detectors: by device type and state, against the model that training began with.

The baseline has one threshold for all device types and states: where its false alarms and misses are equally frequent
over all test data in the normal state. A type's and a state's FR there is what every other model is set to. Their FA is
divided by the baseline's at that FR, found in the same way (`metrics.false_alarm_at`): several thresholds may have one
FR, and a model that did not change must come out as 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from personafl.federation import Federation
from personafl.metrics import det_curve, error_rates, false_alarm_at, relative_false_alarm
from personafl.runs.run import Run
from personafl_papers.data.devices import DEVICES, STATES
from personafl_papers.data.wakeword import states_tested

Model = Literal["global", "personal"]
Place = tuple[str, str]
"""Device type and state."""

Heard = Mapping[Place, tuple[NDArray[Any], NDArray[Any]]]
"""Scores and labels of the test samples of each device type in each of its states."""


def heard(run: Run, federation: Federation, model: Model) -> Heard:
    """What a run's models say of the test samples; the clients of a device type together."""
    predictions = run.predictions()
    if predictions is None or federation.groups is None:
        return {}
    device = np.repeat(np.array(federation.groups), federation.sizes("test"))
    state = states_tested(federation)
    scores, labels = (predictions.column(name).to_numpy() for name in (f"{model}_score", "label"))
    out = {}
    for place in ((d, s) for d in DEVICES for s in STATES):
        rows = (device == place[0]) & (state == place[1])
        if rows.any():
            out[place] = (scores[rows], labels[rows])
    return out


def operating_point(baseline: Heard) -> dict[Place, tuple[float, float]]:
    """FA and FR of the baseline for each device type and state, at its one threshold."""
    normal = [pair for (_, state), pair in baseline.items() if state == STATES[0]]
    curve = det_curve(*(np.concatenate(parts) for parts in zip(*normal, strict=True)))
    nearest = int(np.argmin(np.abs(curve.false_alarm - curve.false_rejection)))
    threshold = [curve.thresholds[nearest]]
    out = {}
    for place, (scores, labels) in baseline.items():
        misses = float(error_rates(scores, labels, threshold)[1][0])
        out[place] = (false_alarm_at(det_curve(scores, labels), misses), misses)
    return out


def relative(models: Heard, point: Mapping[Place, tuple[float, float]]) -> dict[Place, float]:
    """Relative FA for each device type and state; NaN where the baseline has no false alarms."""
    return {place: relative_false_alarm(*models[place], *point[place]) for place in models}
