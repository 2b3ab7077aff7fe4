"""Run folders damaged at random, by seed, as files are that come from strangers."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from safetensors.numpy import load_file, save_file

STRANGE: list[Any] = [
    0, -1, 1, 2**31, 2**40, 2**63 - 1, -(2**63), 10**9, 10**18, 0.5, -0.5, 1e308, float("nan"), float("inf"),
    True, False, "", "x", "[/bold]", "../../up", "\u202e\x1b[31m", "y" * 5000, "\ud800", [], {}, [[]], [1, "a"],
    {"a": 1}, {"name": 3}, ["a"] * 3, [2**40], [100_000, 60_000], [-1], None,
]  # fmt: skip


LONG = 50_000
"""Bytes that no run.toml of these runs has."""


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one file, mostly so that no checksum tells; what was done, for the message of a failing test."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    weight = {".toml": 6, ".jsonl": 4, ".json": 3, ".parquet": 4, ".safetensors": 2, ".timings": 1}
    path = rng.choices(files, [weight.get(p.suffix, 1) for p in files])[0]
    ways = [*_RAW, *[_in_structure] * 4 * (path.suffix in (".toml", ".json", ".jsonl", ".timings")),
            *[_in_table] * 12 * (path.suffix == ".parquet"),
            *[_in_tensors] * 10 * (path.suffix == ".safetensors")]  # fmt: skip
    way = rng.choice([w for w in ways for _ in range(4 if w in (_in_structure,) else 1)])
    said = way(path, rng, files)
    if rng.random() < 0.8:
        forget_checksums(folder)
    return f"{path.relative_to(folder)}: {way.__name__} {said}"


# --- bytes -----------------------------------------------------------------------------------------------------------


def _flip(path: Path, rng: random.Random, files: list[Path]) -> str:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 50])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return ""


def _cut(path: Path, rng: random.Random, files: list[Path]) -> str:
    content = path.read_bytes()
    at = rng.randrange(len(content) + 1)
    path.write_bytes(content[:at] if rng.random() < 0.7 else content[at:])
    return str(at)


def _replace(path: Path, rng: random.Random, files: list[Path]) -> str:
    text = path.read_bytes()
    deep = rng.choice([50, 1000, 100_000])
    new = rng.choice([
        b"", b"\0" * 100, b"\xff\xfe" + text, text.decode("latin-1").encode("utf-16"), b"\xef\xbb\xbf" + text,
        b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"a = " + b"[" * deep + b"]" * deep,
        b"a." * deep + b"a = 1\n" + text, text + b"\n" + text, b"null", b"[]", b"{}", b"3", b'"x"',
        rng.choice(files).read_bytes(), rng.randbytes(300), b"9" * 5000, b"a = " + b"9" * 5000,
    ])  # fmt: skip
    path.write_bytes(new)
    return repr(new[:30])


def _put_something_else(path: Path, rng: random.Random, files: list[Path]) -> str:
    path.unlink()
    what = rng.choice(["nothing", "folder", "fifo", "endless", "dangling", "loop", "other", "proc"])
    outside = path.parents[1] / "outside"
    links = {"endless": "/dev/zero", "dangling": outside, "loop": path, "proc": "/proc/self/mem"}
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "other":
        path.symlink_to(rng.choice(files))
    elif what in links:
        path.symlink_to(links[what])
    return what


_RAW = [_flip, _flip, _cut, _replace, _replace, _put_something_else]

# --- what is in them -------------------------------------------------------------------------------------------------


def _in_structure(path: Path, rng: random.Random, files: list[Path]) -> str:
    """Remove, add or change a value anywhere in a TOML or JSON file."""
    lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else []
    number = rng.randrange(len(lines)) if lines else 0
    text = lines[number] if lines else path.read_text("utf-8") if path.suffix != ".jsonl" else "{}"
    value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    said = _change(value, rng) if isinstance(value, dict | list) and value else ""
    try:
        new = tomli_w.dumps(_without_none(value)) if path.suffix == ".toml" else json.dumps(value)
    except (TypeError, ValueError, UnicodeEncodeError):
        return "nothing"
    if lines:
        new = "".join(f"{line}\n" for line in [*lines[:number], new, *lines[number + 1 :]])
    path.write_text(new, "utf-8", errors="surrogatepass")
    return said


def _change(value: Any, rng: random.Random) -> str:
    where: Any = value
    names: list[str] = []
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = rng.choice(keys)
        names.append(str(key))
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            break
        where = inner
    if rng.random() < 0.25:
        del where[key]
        return f"{'.'.join(names)} removed"
    where[key] = copy.deepcopy(rng.choice(STRANGE))
    return f"{'.'.join(names)} = {str(where[key])[:40]!r}"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value if each is not None] if isinstance(value, list) else value


def _in_table(path: Path, rng: random.Random, files: list[Path]) -> str:
    """Change a column of a parquet file."""
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    at, n = table.column_names.index(name), len(table)
    columns: dict[str, Any] = {
        "texts": pa.array(["[/bold]"] * n), "long": pa.array(["y" * 5000] * n), "nulls": pa.nulls(n),
        "huge": pa.array([10**9] * n), "most": pa.array([2**63 - 1] * n), "negative": pa.array([-1] * n),
        "nan": pa.array([float("nan")] * n), "inf": pa.array([float("inf")] * n), "zeros": pa.array([0] * n),
        "flags": pa.array([True] * n), "lists": pa.array([[1, 2]] * n), "structs": pa.array([{"a": 1}] * n),
        "times": pa.array([0] * n, pa.timestamp("s")), "bytes": pa.array([b"\xff"] * n), "same": pa.array(["a"] * n),
        "null texts": pa.nulls(n, pa.string()), "null numbers": pa.nulls(n, pa.int32()),
        "decimals": pa.nulls(n, pa.decimal128(10)), "unsigned": pa.array([2**64 - 1] * n, pa.uint64()),
        "large": pa.array(["a"] * n, pa.large_string()), "half": pa.array(np.ones(n, np.float16)),
    }  # fmt: skip
    what = rng.choice([*columns, "removed", "empty", "first", "twice", "wide", "added"])
    if what in columns:
        table = table.set_column(at, name, columns[what])
    elif what == "removed":
        table = table.remove_column(at)
    elif what in ("empty", "first"):
        table = table.slice(0, 0 if what == "empty" else 1)
    elif what == "twice":
        table = table.append_column(name, table.column(at))
    else:
        for k in range(300 if what == "wide" else 1):
            called = rng.choice([f"c{k}", f"personal_{k}", f"personal_x{k}_correct"])
            table = table.append_column(called, pa.array([1] * n))
    pq.write_table(table, path)
    return f"{name} {what}"


def _in_tensors(path: Path, rng: random.Random, files: list[Path]) -> str:
    """Change a tensor of a safetensors file, or what it says of itself."""
    tensors, text = load_file(path), path.read_bytes()
    length = int.from_bytes(text[:8], "little")
    header = json.loads(text[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    name = rng.choice(list(tensors))
    what = rng.choice(["shape", "type", "removed", "added", "metadata", "header", "length", "nan", "row"])
    value = tensors[name]
    if what in ("header", "length"):
        header[name][rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(STRANGE)
        new = json.dumps({**header, **({"__metadata__": metadata} if metadata else {})}, default=str).encode()
        size = len(new) if what == "header" else rng.choice([0, 2**40, len(new) // 2])
        path.write_bytes(size.to_bytes(8, "little") + new + text[8 + length :])
        return f"{name} {what}"
    if what == "shape":
        tensors[name] = value.reshape(-1)[: rng.randrange(value.size + 1)].copy()
    elif what == "type":
        tensors[name] = value.astype(rng.choice([np.float64, np.int64, np.uint8, np.float16, np.bool_]))
    elif what == "removed":
        del tensors[name]
    elif what == "added":
        tensors[rng.choice(["extra", "server.extra", "own.extra", "weights"])] = np.ones((2, 2), np.float32)
    elif what == "nan" and value.dtype.kind == "f":
        tensors[name] = np.full_like(value, rng.choice([np.nan, np.inf, 3e38]))
    elif what == "row" and value.ndim:
        tensors[name] = np.concatenate([value, value[:1]])
    else:
        metadata = rng.choice([None, {}, *({"clients": text} for text in ("[1]", "{", "[" * 10_000, "3"))])
    save_file(tensors, path, metadata)
    return f"{name} {what}"


def forget_checksums(folder: Path) -> None:
    """As a stranger would: no checksum stands in the way of what was changed. What is no file is not waited for."""
    try:
        if not (folder / "run.toml").is_file() or (folder / "run.toml").stat().st_size > LONG:
            return  # a key of 100,000 parts takes tomllib 40 GB
        manifest = tomllib.loads((folder / "run.toml").read_text("utf-8"))
        manifest.pop("files", None)
        (folder / "run.toml").write_text(tomli_w.dumps(manifest), "utf-8")
    except (OSError, ValueError, RecursionError, TypeError):
        pass
    for record in filter(Path.is_file, (folder / "checkpoint").glob("round-*.json")):
        try:
            said = json.loads(record.read_text("utf-8"))
            _note(record.with_suffix(".safetensors"), said)
            for number, known in said["clients"].items():
                _note(record.parent / f"clients-{int(number):06d}.safetensors", known)
            said.pop("files", None)
            record.write_text(json.dumps(said), "utf-8")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue


def _note(file: Path, known: dict[str, Any]) -> None:
    if file.is_file() and not file.is_symlink():
        known |= {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def copied(base: Path, to: Path) -> Path:
    """A copy to damage; whatever was there goes."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(base, to))
