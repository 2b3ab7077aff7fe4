"""What the files of a run folder, a fit and a comparison must hold to be read; what else they hold is as it likes.

A field that is not always there, or came with a later version, has a default here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

Count = Annotated[int, Ge(0), Le(2**53)]
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
Number = float | Annotated[int, Ge(-(2**53)), Le(2**53)]
Seconds = Annotated[float, Ge(0), Le(10**9)]
FileName = Annotated[str, AfterValidator(lambda v: _require(v, v == v.rpartition("/")[2] and v not in ("", ".", ".."),
                                                            "must be a name without a folder"))]  # fmt: skip
Digits = Annotated[str, AfterValidator(lambda v: _require(v, v.isdecimal() and len(v) < 20, "must be a number"))]
Share = Annotated[float, Ge(0), Le(1)] | Literal[0, 1]
Table = dict[str, Any]
WHO = ("personal_", "global_")
MOST_VALUES = 2**28
"""Values of a sample."""


def _require(value: Any, ok: bool, what: str) -> Any:
    if not ok:
        raise ValueError(what)
    return value


def _check_shape(value: Any) -> Any:
    sizes = [each for shape in (value.values() if isinstance(value, dict) else [value]) for each in shape]
    lengths = [math.prod(shape) for shape in (value.values() if isinstance(value, dict) else [value])]
    _require(value, all(size >= 1 for size in sizes), "sizes must be at least 1")
    return _require(value, sum(lengths) <= MOST_VALUES, f"a sample may have {MOST_VALUES:,} values")


Dtype = Literal[
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"
]  # fmt: skip
Shape = Annotated[list[Count] | dict[str, list[Count]], AfterValidator(_check_shape)]

# --- run.toml -------------------------------------------------------------------------------------------------------


class _Named(BaseModel):
    name: str


class _Raw(BaseModel):
    input_shape: Shape = [1]
    input_dtype: str | dict[str, str] = ""
    path: str | None = None
    kind: str | None = None


class _BegunResolved(_Raw):
    clients: Count = 0
    fingerprint: str = ""
    loss: str = ""
    parameters: Count = 0
    classes: Count | None = None
    labels: list[Any] | None = None
    outputs: Annotated[int, Ge(1), Le(2**31)] = 1
    engine: str | None = None
    threads: Count | None = None
    metrics: dict[str, Table] | None = None
    task: Table = {}
    raw: _Raw = _Raw()


class _Resolved(_BegunResolved):
    clients: Count
    fingerprint: str
    loss: str
    parameters: Count


class _Taken(BaseModel):
    input_shape: Shape
    input_dtype: Dtype | dict[str, Dtype]


class Described(_Taken):
    """What run.toml has to say of a model that is made again: what it takes and gives."""

    outputs: Annotated[int, Ge(1), Le(2**31)]
    raw: _Taken | None = None


class _Backbone(_Named):
    sha256: str
    pooling: str
    normalize: bool | str


class _Privacy(BaseModel):
    clip: Number
    noise: Number
    delta: Number | None = None
    noise_at: str = "clients"
    unit: str = "client"


class BegunManifest(BaseModel):
    """run.toml, of which anything may be missing."""

    seed: Seed = 0
    rounds: Count = 0
    algorithm: _Named = _Named(name="")
    resolved: _BegunResolved = _BegunResolved()
    eval_clients: Count = 0
    model: Table = {}
    data: Table = {}
    partition: Table = {}
    local: Table = {}
    versions: Table = {}
    stopped: Table = {}
    files: dict[str, str] = {}
    backbone: _Backbone | None = None
    privacy: _Privacy | None = None
    robust: Table = {}
    secure: Table = {}


class Manifest(BegunManifest):
    """run.toml, with what every run has."""

    seed: Seed
    rounds: Count
    algorithm: _Named
    resolved: _Resolved


class Exported(BaseModel):
    """run.toml, with what the card of a model says."""

    model: Table
    local: Table
    versions: Table
    resolved: Described


# --- rounds.jsonl, timings.jsonl, the checkpoint --------------------------------------------------------------------


def _check_scores(record: Any) -> Any:
    for key, value in record.items() if isinstance(record, dict) else ():
        if key.startswith(WHO) and not (value is None or isinstance(value, float | int)):
            raise ValueError(f"{key} must be a number")
    return record


class _Round(BaseModel):
    round: Count
    active: Count
    bytes_up: Count
    bytes_down: Count
    failed: list[str] = []
    steps: Number = 0
    gradients: Count = 0
    stopped: str = ""


Round = Annotated[_Round, BeforeValidator(_check_scores)]
"""A line of rounds.jsonl."""


class Timing(BaseModel):
    """A line of timings.jsonl."""

    round: Count
    round_seconds: Seconds


class Extent(BaseModel):
    """What a file was at a checkpoint."""

    bytes: Count
    sha256: str


class _Files(BaseModel):
    rounds: Extent = Field(alias="rounds.jsonl")
    evaluations: Count


class _Rows(Extent):
    rows: Count


class CheckpointRecord(Extent):
    """round-000050.json."""

    round: Count
    values: dict[str, Count]
    clients: dict[Digits, _Rows]
    files: _Files | dict[str, Annotated[int, Le(-1)]] = {}


class Evaluated(BaseModel):
    """A line of clients.parts/index.jsonl."""

    round: Count
    files: dict[str, str]


# --- fit.json, trials.jsonl, comparison.json ------------------------------------------------------------------------


class _Finalist(BaseModel):
    label: str
    method: str
    who: Literal["personal", "global"]
    settings: Table
    rounds: Count
    score: Number
    folder: FileName
    searched: FileName | None = None
    kept: list[str] = []


class _Outcome(BaseModel):
    rounds: Count
    score: Number | None
    seconds: Number
    at: Number
    why: str | None = ""


class _Trial(BaseModel):
    method: str
    settings: Table
    outcomes: list[_Outcome]


class _Way(BaseModel):
    kind: Literal["single", "one each", "mixture"]
    alpha: Annotated[float, Ge(0)] | None = None
    sentence: str


class _Considered(BaseModel):
    title: str
    taken: bool
    unseen: Number
    seen: Number
    log_likelihood: Number


class _Validation(BaseModel):
    best: str
    with_best: list[Number | None]
    alone: list[Number | None]


class _Fit(BaseModel):
    finalists: list[_Finalist]
    weights: list[list[Share]]
    clients: list[str]
    newcomer: list[Share]
    test: Table
    sentences: list[str]
    n_val: Count
    way: _Way
    ways: list[_Considered]
    trials: list[_Trial]
    budget: Number
    seconds: Number
    stopped: bool
    refit: bool = False
    measure: str = ""
    validation: _Validation | None = None
    notes: list[str] = []


def _check_fit(found: _Fit) -> _Fit:
    models = len(found.finalists)
    _require(found, models > 0 and len({each.label for each in found.finalists}) == models, "finalists must differ")
    _require(found, len(found.weights) == len(found.clients), "there must be weights for each client")
    _require(found, all(each.searched for each in found.finalists if each.kept), "kept needs searched")
    if (own := found.validation) is not None:
        sizes = {len(own.with_best), len(own.alone)}
        _require(found, sizes == {len(found.clients)}, "validation: there must be a value for each client")
    rows = [*found.weights, found.newcomer]
    _require(found, all(len(row) == models and sum(row) > 0 for row in rows), "weights: one for each finalist")
    return found


Fit = Annotated[_Fit, AfterValidator(_check_fit)]
"""fit.json."""


class _Failure(BaseModel):
    method: str
    seed: Seed
    why: str


class _Try(BaseModel):
    settings: Table
    score: Number | None
    seconds: Number


class _Search(BaseModel):
    method: str
    measure: str
    chosen: Table
    trials: list[_Try]


class Comparison(BaseModel):
    """comparison.json."""

    runs: dict[str, dict[Digits, FileName]]
    added: list[str] = []
    failures: list[_Failure] = []
    searches: list[_Search] = []
    equal_work: Table | None = None


# --- tables ---------------------------------------------------------------------------------------------------------

MOST_SAMPLES, MOST_CLASSES = 2**40, 2**31


def check_clients(table: pa.Table) -> None:
    """clients.parquet, or the rows of one evaluation."""
    _check_columns(table, ("client", "round", "n_train", "n_val", "n_test"), ("client", "group"))
    _require(table, len(table) > 0, "it has no row")
    for name in ("round", "n_train", "n_val", "n_test"):
        _check_range(table, name, MOST_SAMPLES)
    for name in table.column_names:
        if name.endswith("_correct"):
            split = "val" if "_val_" in name else "held" if "_held_" in name else "test"
            hits, n = table.column(name), table.column(f"n_{split}") if f"n_{split}" in table.column_names else None
            wrong = pc.less(hits, 0) if n is None else pc.or_(pc.less(hits, 0), pc.greater(hits, n))
            _require(table, not pc.any(wrong).as_py(), f"column {name!r} has more right answers than samples")


def check_predictions(table: pa.Table) -> None:
    """predictions.parquet."""
    _check_columns(table, ("client", "label"), ("client",))
    for name in ("label", *(n for n in table.column_names if n.endswith("_class"))):
        if not (name != "label" and table.column(name).null_count == len(table)):
            _check_range(table, name, MOST_CLASSES)


def _check_columns(table: pa.Table, needed: tuple[str, ...], texts: tuple[str, ...]) -> None:
    names = table.column_names
    if lacking := [name for name in needed if name not in names]:
        raise ValueError(f"it lacks the column {lacking[0]!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"it has the column {next(name for name in names if names.count(name) > 1)!r} twice")
    for field in table.schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if field.name in texts:
            ok = pa.types.is_string(kind) or (pa.types.is_null(kind) and field.name not in needed)
        else:
            ok = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
        _require(table, ok, f"column {field.name!r} is of type {field.type}")
        nulls = table.column(field.name).null_count
        _require(table, field.name not in needed or not nulls, f"column {field.name!r} has rows without a value")


def _check_range(table: pa.Table, name: str, most: int) -> None:
    column = table.column(name)
    whole = pa.types.is_integer(column.type) and not column.null_count
    _require(table, whole, f"column {name!r} must be of whole numbers")
    found = pc.min_max(column).as_py()
    low, high = found["min"] or 0, found["max"] or 0
    _require(table, 0 <= low and high < most, f"column {name!r} has values from {low} to {high}")
