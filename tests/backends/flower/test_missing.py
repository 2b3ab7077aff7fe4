"""Sites whose tables have gaps fill them in by their own training rows, and have samples of the same shape for it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch

from personafl.backends.flower.site_data import read_data, read_site
from personafl.errors import ConfigError, DataError
from personafl.federation import Federation
from tests.backends.flower.grid import MemoryGrid, Node
from tests.backends.flower.problem import flower, loop, same, server_state, site_model

SPLITS = ("train",) * 8 + ("val",) * 2 + ("test",) * 4


def rows(m):
    """Ages with gaps at site 0, sizes with gaps at site 1, none at site 2."""
    rng = np.random.default_rng(m)
    x = rng.normal(size=(14, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    if m < 2:
        x[[1, 5, 12], m] = np.nan
    return x, y


def write(folder, m, **more):
    folder.mkdir(parents=True)
    x, y = rows(m)
    columns = {"age": pa.array(x[:, 0], from_pandas=True), "size": pa.array(x[:, 1], from_pandas=True)}
    pq.write_table(pa.table({**columns, "ill": y, "part": SPLITS}), folder / "rows.parquet")
    table = {"id": f"site-{m}", "data": "rows.parquet", "folder": ".", "label": "ill", "split": "part",
             "least_batch_size": 1, "least_samples": 1, **more}  # fmt: skip
    (folder / "site.toml").write_text(tomli_w.dumps(table))
    return folder / "site.toml"


def filled_by_hand(m):
    """[age, size, age is missing, size is missing], with the medians of the eight training rows."""
    x, y = rows(m)
    gaps = np.isnan(x)
    x = np.concatenate([np.where(gaps, np.nanmedian(x[:8], axis=0), x), gaps], axis=1).astype(np.float32)
    return {"train": (x[:8], y[:8]), "val": (x[8:10], y[8:10]), "test": (x[10:], y[10:])}


def test_a_run_of_sites_with_gaps_is_the_run_of_what_each_has_filled_in(tmp_path):
    files = {f"site-{m}": write(tmp_path / "sites" / str(m), m, missing="fill") for m in range(3)}
    grid = MemoryGrid({1000 + k: Node(file) for k, file in enumerate(files.values())})
    ours = flower(tmp_path / "flower", grid, "ditto", input_shape=[4], max_weight=1.0)
    data = Federation.from_clients({client: filled_by_hand(m) for m, client in enumerate(files)}, classes=2)
    reference = loop(tmp_path / "loop", "ditto", data)
    assert same(server_state(ours), server_state(reference))
    for m, (client, file) in enumerate(files.items()):
        wanted = {name: value.detach() for name, value in reference.personal(client).named_parameters()}
        assert same(site_model(file), wanted)
        kept = json.loads((file.parent / "models" / "personal.json").read_text())["filled_in"]
        assert np.allclose(kept["missing_value"], np.nanmedian(rows(m)[0][:8], axis=0))


def test_what_fill_all_makes_does_not_depend_on_where_the_gaps_are():
    x, y = rows(0)
    shapes = [Federation.from_clients({"a": (x, y)}, missing=how).x.shape[1] for how in ("fill", "fill-all")]
    assert shapes == [3, 4]
    table = {"age": [1.0, None, 3.0], "kind": ["a", "b", "a"], "ill": [0, 1, 0], "who": ["me"] * 3}
    named = Federation.from_table(table, label="ill", client="who", categorical=["kind"], missing="fill-all")
    assert named.x.shape == (3, 5) and torch.equal(named.constants["missing_indicator"], torch.tensor([0, 1]))


def test_gaps_that_nobody_fills_in_are_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"rows.parquet: column 'age' in row 2 has no value; fill it in \(missing"):
        read_data(read_site(write(tmp_path / "error", 0)))
    with pytest.raises(ConfigError, match="missing = 'fil'"):
        read_site(write(tmp_path / "typo", 0, missing="fil"))
    file = write(tmp_path / "empty", 2, missing="fill")
    table = pq.read_table(file.parent / "rows.parquet")
    nothing = pa.nulls(len(table), pa.float32())
    pq.write_table(table.set_column(0, "age", nothing), file.parent / "rows.parquet")
    with pytest.raises(DataError, match="feature '0' has no value in any training sample; leave it out"):
        read_data(read_site(file))
