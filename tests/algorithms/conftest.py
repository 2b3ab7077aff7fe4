"""What tests of algorithms share."""

from __future__ import annotations

import pytest

from personafl.kernels.task import Task


@pytest.fixture
def step_by_step(monkeypatch):
    """The stacked engine takes all steps one by one, for algorithms that are compared bit for bit.

    Steps of plain SGD that are taken at once (`tests/engines/test_steps_at_once.py`) differ from them by rounding.
    """
    monkeypatch.setattr(Task, "takes_steps_at_once", lambda self, x: False)
