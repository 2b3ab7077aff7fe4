import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import personafl as pf
from personafl.cli import app
from personafl.errors import RunError
from personafl.runs.run import Run
from personafl.storage.folder import RunFolder
from personafl.study.gain import ALONE, GIVES, PROFITS, UNKNOWN, gains, plot, sentence
from personafl.study.gain_check import check, run_alone, words
from personafl_papers import theory
from personafl_papers.data.gaussian import Gaussian
from tests.runs.damage import forget_checksums

OLD_RUN = Path(__file__).parents[1] / "fixtures" / "old_runs" / "selffl"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Clients of the two-level Gaussian model, so that theory knows the answer; one is never active often enough."""
    federation = pf.data.build(Gaussian(clients=12, sigma0_2=0.5, n_min=5, n_max=100), seed=3)
    return pf.train(
        federation, nn.Linear(1, 1, bias=False), pf.SelfFL(posterior="exact", variance="mean", scope="all"),
        rounds=6, activity=0.4, local=pf.Local(lr=0.05, batch_size=5, steps=5), seed=1,
        out=tmp_path_factory.mktemp("run") / "selffl", progress=False,
    )  # fmt: skip


def test_gain_is_the_theorys_formula_on_the_estimated_variances(run):
    table = run.clients()
    known = np.array([value is not None and np.isfinite(value) for value in table.column("gain").to_pylist()])
    assert 2 < known.sum() < 12
    sigma2 = np.array(table.column("sigma2").to_pylist(), float)[known]
    sigma0_2 = float(np.array(table.column("sigma0_2").to_pylist(), float)[known][0])
    expected = theory.gain(sigma2, sigma0_2, posterior="exact")
    np.testing.assert_allclose(np.array(table.column("gain").to_pylist(), float)[known], expected, rtol=1e-4)


def test_clients_are_sorted_into_those_who_profit_give_or_need_not_join(run):
    found = gains(run, threshold=float(np.nanmedian(gains(run).gain)))
    for verdict, gain, weight in zip(found.verdict, found.gain, found.weight, strict=True):
        if not np.isfinite(gain):
            assert verdict == UNKNOWN
        elif verdict == PROFITS:
            assert gain >= np.nanmedian(found.gain)
        else:
            assert verdict == (GIVES if weight > np.nanmedian(found.weight) else ALONE)
    assert found.count(PROFITS) >= 1
    assert f"{found.count(PROFITS)} of 12 clients profit" in sentence(found, 1.1)
    assert f"{found.count(UNKNOWN)} were active too seldom" in sentence(found, 1.1)


def test_the_command_prints_a_table_and_draws_a_plot(run, tmp_path):
    picture = tmp_path / "gain.png"
    done = CliRunner().invoke(app, ["gain", str(run.path), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert "GAIN" in done.output and "of 12 clients profit" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(CliRunner().invoke(app, ["gain", str(run.path), "--json"]).stdout)
    assert len(rows) == 12 and {row["verdict"] for row in rows} <= {PROFITS, GIVES, ALONE, UNKNOWN}


def test_a_run_without_uncertainty_has_no_gain(tmp_path):
    federation = pf.data.build(Gaussian(clients=3))
    other = pf.train(federation, nn.Linear(1, 1, bias=False), rounds=1, out=tmp_path / "run", progress=False)
    with pytest.raises(RunError, match="fedavg, which does not estimate GAIN"):
        gains(other)


@pytest.mark.parametrize("column", ["weight", "sigma2", "steps"])
def test_a_table_that_lacks_a_column_is_named_with_it(tmp_path, column):
    folder = tmp_path / "run"
    shutil.copytree(OLD_RUN, folder)
    table = pq.read_table(folder / "clients.parquet")
    pq.write_table(table.drop_columns([column]), folder / "clients.parquet")
    forget_checksums(folder)
    with pytest.raises(RunError, match=f"clients.parquet: column '{column}' is missing"):
        gains(pf.load_run(folder))


def test_a_plot_without_any_known_client_is_still_a_plot(tmp_path):
    federation = pf.data.build(Gaussian(clients=3))
    fresh = pf.train(
        federation, nn.Linear(1, 1, bias=False), pf.SelfFL(), rounds=1, out=tmp_path / "run", progress=False
    )
    found = gains(fresh)
    assert set(found.verdict) == {UNKNOWN}
    assert "train for more rounds" in sentence(found, 1.1)
    plot(found, tmp_path / "gain.png")
    assert (tmp_path / "gain.png").stat().st_size > 1000


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """Labels that have nothing to do with the inputs: nobody can learn anything from anybody."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(600, 5)).astype(np.float32), draw.integers(0, 2, 600)
    federation = pf.Federation.from_arrays(x, y, partition=pf.partition.IID(clients=6), splits=(0.5, 0.25, 0.25))
    return pf.train(
        federation, nn.Linear(5, 2), pf.SelfFL(), rounds=8, local=pf.Local(lr=0.1, batch_size=5, steps=5),
        out=tmp_path_factory.mktemp("noise") / "selffl", progress=False,
    )  # fmt: skip


def test_on_random_data_the_estimate_is_not_borne_out(noise):
    found, measured = gains(noise), check(noise)
    assert found.count(PROFITS) > 0  # by the estimate alone, they profit
    assert measured.split == "validation" and measured.above_chance is False and measured.borne_out is False
    assert words(measured).startswith("The estimate is not borne out. Measured on validation data of 6 clients")
    done = CliRunner().invoke(app, ["gain", str(noise.path)])
    said = " ".join(done.output.split())
    assert done.exit_code == 0
    assert said.index("The estimate is not borne out") < said.index("By Self-FL's estimate")
    rows = json.loads(CliRunner().invoke(app, ["gain", str(noise.path), "--json"]).stdout)
    assert {row["borne_out"] for row in rows} == {False}
    assert rows[0]["validation_accuracy"] == pytest.approx(measured.together[0])


def kept(folder, algorithm, right, n_val=20, **more):
    """A finished run of ten clients with so many right validation answers each."""
    files, ones = RunFolder(folder), np.ones(10)
    files.create({"seed": more.pop("seed", 0), "rounds": 1, "algorithm": {"name": algorithm},
                  "resolved": {"fingerprint": more.pop("fingerprint", "f"), "classes": 4, "clients": 10,
                               "loss": "cross-entropy", "parameters": 1}})  # fmt: skip
    right = np.broadcast_to(right, 10)
    columns = {"client": [f"c{m}" for m in range(10)], "round": [1] * 10, "n_train": [10] * 10, "n_val": [n_val] * 10,
               "n_test": [20] * 10, "personal_correct": right, "personal_val_correct": np.minimum(right, n_val),
               "steps": [5] * 10, "sigma2": ones, "gain": 5 * ones, "weight": ones, **more}  # fmt: skip
    files.evaluations.write(1, pa.table(columns))
    files.append("rounds.jsonl", {"round": 1, "active": 10, "bytes_up": 0, "bytes_down": 0})
    files.merge_clients()
    files.write_models("personal", {"weight": torch.zeros(10, 1)}, {})
    return Run(folder)


@pytest.mark.parametrize(
    ("alone", "helps", "said"),
    [
        (12, 1, "Measured on validation data of 10 clients: with the others 75.0% right, alone 60.0% right: joining "
         "helps."),
        (18, -1, "The estimate is not borne out. Measured on validation data of 10 clients: with the others 75.0% "
         "right, alone 90.0% right: joining does not help, it harms."),
        ([14, 16] * 5, 0, "alone 75.0% right: joining is not shown to help."),
    ],
)  # fmt: skip
def test_joining_is_measured_against_training_alone_beside_it(tmp_path, alone, helps, said):
    mine = kept(tmp_path / "selffl", "selffl", 15)
    kept(tmp_path / "separate", "separate", alone)
    found = check(mine)
    assert (found.helps, found.borne_out) == (helps, helps > 0)
    assert words(found).endswith(said)


def test_unequal_work_is_said_beside_the_measurement(tmp_path):
    mine = kept(tmp_path / "selffl", "selffl", 15, gradients=[400] * 10)
    kept(tmp_path / "separate", "separate", 12, gradients=[200] * 10)
    assert "(with unequal work: 400 gradients a client and 200)" in words(check(mine))


def test_only_training_alone_on_the_same_data_counts(tmp_path):
    mine = kept(tmp_path / "selffl", "selffl", 15)
    kept(tmp_path / "other data", "separate", 18, fingerprint="g")
    kept(tmp_path / "other seed", "separate", 18, seed=1)
    kept(tmp_path / "other method", "ditto", 18)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.toml").write_text("no toml at all [")
    assert run_alone(mine) is None
    found = check(mine)
    assert found.borne_out is None and found.above_chance
    assert "Whether joining helps is not measured: that needs a run of `separate`" in words(found)


def test_without_validation_data_test_data_is_measured(tmp_path):
    mine = kept(tmp_path / "selffl", "selffl", 15, n_val=0)
    kept(tmp_path / "separate", "separate", 12, n_val=0)
    assert words(check(mine)).startswith("Measured on test data of 10 clients")


def test_a_regression_is_measured_by_its_rmse(run):
    found = check(run)
    assert (found.measure.name, found.chance, found.borne_out) == ("rmse", None, None)
    assert "a RMSE of" in words(found)
