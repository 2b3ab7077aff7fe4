"""A round on cached features against the same round with the frozen backbone in the model.

    python benchmarks/pretrained.py WEIGHTS [--only minilm speech] [--clients 20] [--rounds 4]

WEIGHTS is a folder with all-MiniLM-L6-v2/ (a folder of transformers) and speech-embedding/embedding_model.onnx. MiniLM
reads tweets of Sentiment140 where sent140.csv.gz is in PERSONAFL_DATA, 32 tokens each; the speech embedding gets mel
windows (76, 32) of noise, whose time is that of speech. A client has 40 samples and takes 10 steps on batches of 8;
fedavg, a linear head. The median round, evaluation left out, of both in this one process; the pass that computes the
features is beside it, as it is paid once.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import personafl as pf
from personafl.pretrained import Backbone, PretrainedModel, load, tokenized

SAMPLES = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PERSONAFL_CACHE"] = cache
        for name in given.only:
            compare(name, *CASES[name](given.weights, given.clients), given.rounds)


def compare(name: str, backbone: Backbone, raw: pf.Federation, width: int, rounds: int) -> None:
    """Print the times of a round and their ratio."""
    start = time.perf_counter()
    features = raw.through(backbone, progress=False)
    once = time.perf_counter() - start
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(width, 2))
    fast, ours = median_round(features, head, "stacked", 10 * rounds)
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    whole = PretrainedModel(backbone, head)
    whole.train()  # the backbone stays in eval()
    for engine in ("stacked", "loop"):
        slow, theirs = median_round(raw, whole, engine, rounds)
        same = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
        print(
            f"{name}, {len(raw)} clients: features {fast * 1000:.1f} ms a round, the backbone in it ({engine}) "
            f"{slow * 1000:.0f} ms, {slow / fast:.0f} times; the pass {once:.1f} s for {len(raw.y)} samples; heads "
            f"differ by {same:.1e} at the most",
            flush=True,
        )


def median_round(federation: pf.Federation, model: nn.Module, engine: str, rounds: int) -> tuple[float, list[Any]]:
    """Seconds of a round, and the global head after one round."""
    clock = Clock()
    settings: dict[str, Any] = dict(local=pf.Local(lr=0.1, steps=10, batch_size=8), engine=engine, threads=1)
    pf.train(federation, model, rounds=rounds, eval_every=0, progress=False, listeners=[clock], **settings)
    trained: Any = pf.train(federation, model, rounds=1, eval_every=0, progress=False, **settings).global_model()
    return statistics.median(clock.seconds[:-1]), [parameter.detach() for parameter in trained.head.parameters()]


class Clock(pf.Listener):
    """Remembers how long rounds took; the last has the evaluation in it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def round_ended(self, record: dict[str, Any], seconds: dict[str, float]) -> None:
        self.seconds.append(seconds["round"])


def minilm(weights: Path, clients: int) -> tuple[Backbone, pf.Federation, int]:
    backbone = load(weights / "all-MiniLM-L6-v2")
    texts = tweets(clients * SAMPLES)
    data = {f"c{k}": (texts[k * SAMPLES : (k + 1) * SAMPLES], [0, 1] * (SAMPLES // 2)) for k in range(clients)}
    return backbone, pf.Federation.from_clients(tokenized(data, backbone, length=32)), 384


def tweets(count: int) -> list[str]:
    file = Path(os.environ.get("PERSONAFL_DATA", ".")) / "sent140.csv.gz"
    if not file.is_file():
        draws = np.random.default_rng(0)
        return [" ".join(draws.choice(["it", "is", "a", "good", "bad", "day"], 30)) for _ in range(count)]
    with gzip.open(file, "rt", encoding="utf-8", newline="") as opened:
        return [row["text"] for row, _ in zip(csv.DictReader(opened), range(count), strict=False)]


def speech(weights: Path, clients: int) -> tuple[Backbone, pf.Federation, int]:
    backbone = load(weights / "speech-embedding" / "embedding_model.onnx")
    draws = np.random.default_rng(0)
    data = {
        f"c{k}": (draws.normal(size=(SAMPLES, 76, 32, 1)).astype(np.float32), [0, 1] * (SAMPLES // 2))
        for k in range(clients)
    }
    return backbone, pf.Federation.from_clients(data), 96


CASES = {"minilm": minilm, "speech": speech}

if __name__ == "__main__":
    main()
