"""docs/tasks.md: every config on it runs, by name, and ranks by what the table says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import personafl as pf
from personafl.config import parse
from personafl.jobs import train_config
from personafl.tasks import TASKS

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "tasks.md").read_text("utf-8")
CONFIGS = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
FIRST = ["f1", "auc", "mae", "pinball", "iou", "token_accuracy", "perplexity", "concordance", "concordance"]


def samples(task: str, rng: np.random.Generator, n: int = 20) -> dict[str, np.ndarray]:
    x, signs = rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 2, (n, 3))
    time = np.stack([rng.exponential(3, n), rng.random(n) < 0.7], 1).astype(np.float32)
    tokens = rng.integers(0, 5, (n, 6))
    tags = np.where(rng.random((n, 6)) < 0.2, -100, rng.integers(0, 5, (n, 6)))
    tags[0] = range(4, -2, -1)
    tags[0, -1] = 4
    known = {
        "classification": (x, signs[:, 0]), "multilabel": (x, signs), "regression": (x, rng.integers(0, 60, n)),
        "segmentation": (rng.normal(size=(n, 1, 5, 5)).astype(np.float32), rng.integers(0, 3, (n, 5, 5))),
        "tagging": (tokens, tags), "next-token": (tokens, tags), "cox": (x, time), "hazard": (x, time),
    }  # fmt: skip
    return dict(zip("xy", known[task], strict=True))


def test_the_page_shows_every_task():
    assert {config["task"]["name"] for config in CONFIGS} == set(TASKS)
    for name, kind in TASKS.items():
        usual = kind()
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{metric}`" in row for metric in usual.usual), name


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_a_config_of_the_page_runs(number, tmp_path, monkeypatch):
    config, rng = CONFIGS[number], np.random.default_rng(number)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    (tmp_path / "clients").mkdir()
    for m in range(3):
        np.savez(tmp_path / "clients" / f"c{m}.npz", **samples(config["task"]["name"], rng))
    runs = [train_config(parse({**config, "engine": engine}), tmp_path / engine) for engine in ("loop", "stacked")]
    assert runs[0].primary.name == FIRST[number]
    scores = [run.score for run in runs]
    assert scores[0].keys() == scores[1].keys() and np.isfinite(scores[0][f"personal_{FIRST[number]}"])
    for key, value in scores[0].items():
        assert value == pytest.approx(scores[1][key], rel=1e-4, abs=1e-5), key
    assert pf.load(tmp_path / "loop").manifest["task"]["name"] == config["task"]["name"]
