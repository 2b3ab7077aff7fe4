"""Actors of Ray measure what the loop engine does, somebody's own metric too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
import personafl as pf
from tests.tasks.test_runs import arrays, federation, linear, within

if __name__ == "__main__":
    several = (arrays()[0] > 0).astype(np.int64)
    own = {"metrics": {"within": within}}
    for fed, model, more in ((federation(), linear(), own), (federation(several), linear(3), {})):
        how = {"rounds": 2, "progress": False, "ray": pf.RaySettings(actors=2), **more}
        loop, ray = (pf.train(fed, model, pf.Ditto(), engine=engine, **how) for engine in ("loop", "ray"))
        assert loop.measures == ray.measures and loop.score.keys() == ray.score.keys()
        for key, value in loop.score.items():
            assert np.isclose(value, ray.score[key], rtol=1e-5), key
"""


@pytest.mark.slow
def test_the_metrics_of_tasks_on_ray():
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300
    )
    assert done.returncode == 0, done.stderr
