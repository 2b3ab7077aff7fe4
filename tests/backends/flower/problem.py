"""A small federation, the config of its operator, and what its runs leave behind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w
import torch
from safetensors.torch import load_file

from personafl.backends.flower.app import serve
from personafl.backends.flower.evaluations import loss_step
from personafl.config import parse
from personafl.federation import Federation
from personafl.jobs import train_config
from personafl.runs.run import Run
from personafl.storage import checkpoint
from personafl.storage.folder import RunFolder
from personafl.training.clients import SEEN
from tests.archetypes import SHORT_GRID
from tests.backends.flower.grid import MemoryGrid

SETTINGS = {"seed": 3, "rounds": 3, "eval_every": 0, "model": "mclr", "local": {"steps": 2, "batch_size": 4, "lr": 0.1}}
FEDERATION = {"sites": 3, "input_shape": [4], "classes": 2, "patience": 5.0, "round_timeout": 0.3}
OPTIONS = ("min_answers", "clients", "max_weight", "most_samples", "max_norm_factor")


def federation() -> Federation:
    rng = np.random.default_rng(0)
    data = {}
    for m in range(3):
        n = 14 + 3 * m
        x = rng.normal(size=(n, 4)).astype(np.float32)
        y = (x[:, 0] + 0.5 * m > 0).astype(np.int64)
        cuts = {"train": slice(0, n - 8), "val": slice(n - 8, n - 4), "test": slice(n - 4, n)}
        data[f"site-{2 * m + 2}"] = {split: (x[part], y[part]) for split, part in cuts.items()}
    groups = {client: "ab"[m % 2] for m, client in enumerate(data)}  # natural order: site-2, site-4, site-6
    return Federation.from_clients(data, classes=2, groups=groups)


def quick(algorithm: Any) -> Any:
    """PersFL's second stage with fewer students: what is tested here does not depend on their number."""
    return {"name": "persfl", **SHORT_GRID} if algorithm == "persfl" else algorithm


def flower(folder: Path, grid: MemoryGrid, algorithm: Any, **more: Any) -> Run:
    """A run with the sites of a grid, with federation settings among `more`; it goes on where one is there."""
    folder.mkdir(parents=True, exist_ok=True)
    joint = {
        **FEDERATION,
        **{key: more.pop(key) for key in list(more) if key in (*FEDERATION, *OPTIONS)},
    }
    if "clients" in joint:
        del joint["sites"]
    (folder / "federation.toml").write_text(
        tomli_w.dumps({**SETTINGS, "algorithm": quick(algorithm), **more, "federation": joint})
    )
    serve(grid, folder / "federation.toml", folder / "run")
    return Run(folder / "run")


def loop(folder: Path, algorithm: Any, data: Federation, **more: Any) -> Run:
    """The same on the loop engine."""
    tables = {**SETTINGS, "algorithm": quick(algorithm), "engine": "loop", "checkpoint_every": 1, **more}
    return train_config(parse(tables), folder, federation=data)


def server_state(run: Run) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run.folder.checkpoints)
    assert found is not None
    return found.tensors


def loop_states(run: Run) -> dict[str, dict[str, torch.Tensor]]:
    """What each client of a loop run keeps in the end."""
    rows = load_file(run.folder.checkpoints / f"clients-{run.manifest['rounds']:06d}.safetensors")
    names = [name for name in rows if name.startswith("own.") and name != f"own.{SEEN}"]
    ids = federation().ids
    return {ids[i]: {n.removeprefix("own."): rows[n][k] for n in names} for k, i in enumerate(rows["ids"].tolist())}


def site_state(site: Path, round: int) -> dict[str, torch.Tensor]:
    (file,) = site.parent.glob(f"state/*/round-{round:06d}.safetensors")
    return load_file(file)


def site_model(site: Path) -> dict[str, torch.Tensor]:
    return load_file(site.parent / "models" / "personal.safetensors")


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and a[n].numpy().tobytes() == b[n].numpy().tobytes()
        for n in a
    )


def same_clients(a: Run, b: Run) -> bool:
    return same_tables(RunFolder(a.path).clients(), RunFolder(b.path).clients())


def same_tables(ours: pa.Table, reference: pa.Table) -> bool:
    """To the last bit, but for what sites round before they tell it: the reference is rounded as they do."""
    names = ours.column_names
    return bool(ours.schema == reference.schema and all(_alike(ours, reference, name) for name in names))


def same_values(a: pa.Table, b: pa.Table) -> bool:
    """To the last bit; a value that is not a number is like itself, which pyarrow's own comparison denies."""
    return bool(a.schema == b.schema and all(_bits(a.column(name)) == _bits(b.column(name)) for name in a.column_names))


def _bits(column: pa.ChunkedArray) -> object:
    if not pa.types.is_floating(column.type):
        return column.to_pylist()
    return column.is_null().to_pylist(), column.to_numpy(zero_copy_only=False).tobytes()


def _alike(ours: pa.Table, reference: pa.Table, name: str) -> bool:
    a, b = ours.column(name).to_pylist(), reference.column(name).to_pylist()
    if not pa.types.is_floating(ours.schema.field(name).type):
        return a == b
    if name.endswith("_loss"):
        steps = [
            loss_step(n)
            for n in ours.column("n_val" if "_val_" in name else "n_held" if "_held_" in name else "n_test").to_pylist()
        ]
        b = [v if v is None else round(v / step) * step for v, step in zip(b, steps, strict=True)]
    x, y = (np.array([np.nan if v is None else v for v in column]) for column in (a, b))
    exact = name.endswith("_loss")
    return [v is None for v in a] == [v is None for v in b] and bool(
        np.isclose(x, y, rtol=1e-9 if exact else 6e-3, atol=1e-9 if exact else 0, equal_nan=True).all()
    )


def same_rounds(ours: list[dict[str, Any]], reference: list[dict[str, Any]], samples: int) -> bool:
    """What rounds.jsonl says is the same, losses to what sites with so many samples of a split round them to."""
    close = loss_step(samples) / 2 + 1e-9
    return len(ours) == len(reference) and all(
        a.keys() == b.keys() and all(a[k] == b[k] or (k.endswith("_loss") and abs(a[k] - b[k]) <= close) for k in a)
        for a, b in zip(ours, reference, strict=True)
    )


def as_table(run: Run) -> pa.Table:
    return RunFolder(run.path).clients()
