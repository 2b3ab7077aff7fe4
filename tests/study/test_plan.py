"""Comparisons: what is run and reused, what is chosen on which data; and an interruption changes nothing."""

import json

import numpy as np
import pytest

from personafl.comparison import Comparison
from personafl.config import parse
from personafl.errors import ConfigError
from personafl.registry import described
from personafl.runs.run import Run
from personafl.study import recipes
from personafl.study.description import description
from personafl.study.launch import run_plan
from personafl.study.plan import plan
from personafl.study.recipes import identity
from personafl.training.events import Listener

TABLES = {
    "seed": 3,
    "rounds": 3,
    "eval_every": 1,
    "checkpoint_every": 1,
    "splits": [0.5, 0.2, 0.3],
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mclr"},
    "local": {"steps": 2, "lr": 0.1},
    "engine": {"name": "loop"},
}


def table_without_times(folder):
    """comparison.json without the seconds, which no two runs share."""
    found = json.loads((folder / "comparison.json").read_text())
    for row in found["metrics"]:
        if row["metric"] == "seconds":
            row.update(mean=0, standard_error=0, values=[])
    for search in found["searches"]:
        for trial in search["trials"]:
            trial["seconds"] = 0
    return found


def finished(planned, folder, listeners=lambda job, reused: ()):
    found = run_plan(planned, folder, listeners)
    Comparison(**vars(found)).write()
    return found


# --- the plan


def test_what_qoi_needs_comes_along():
    planned = plan(TABLES, ["ditto"], seeds=2)
    assert planned.methods == ("ditto", "separate", "fedavg") and planned.added == ("separate", "fedavg")
    assert planned.seeds == (3, 4) and planned.jobs() == 6
    assert plan(TABLES, ["fedavg", "separate"], seeds=1).added == ()


def test_all_takes_the_algorithms_that_fit_the_model_and_says_why_others_do_not(caplog):
    linear, deep = (plan({**TABLES, "model": model}, ["all"], seeds=1).methods for model in ("mclr", "mlp"))
    assert set(deep) - set(linear) >= {"fedrep", "fedbabu", "heterofl"} and set(linear) < set(deep)
    assert "fedbn" not in deep
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("left out: fedrep (algorithm.head = 1: must be fewer layers") for line in lines)
    assert len([line for line in lines if line.startswith("left out: fedbn (")]) == 2
    assert not any("\n" in line for line in lines)


def test_all_without_the_data_leaves_out_what_depends_on_the_model(caplog, tmp_path):
    """Runs on a cluster may have the data where they run only."""
    tables = {key: value for key, value in TABLES.items() if key != "partition"}
    tables["data"] = {"name": "files", "path": str(tmp_path / "nowhere")}
    methods = plan(tables, ["all"], seeds=1).methods
    assert "ditto" in methods and "fedrep" not in methods
    assert "cannot be seen without the data" in caplog.text


def test_methods_of_the_config_are_algorithms_with_settings_of_their_own():
    tables = TABLES | {
        "algorithm": {"name": "fedprox", "mu": 0.5},
        "methods": {
            "long": {"algorithm": {"name": "ditto", "lam": 2.0}, "local": {"steps": 9}},
            "fedprox": {"local": {"lr": 0.01}},
        },
    }
    planned = plan(tables, seeds=1)
    assert planned.methods == ("long", "fedprox", "separate", "fedavg")
    long = planned.job("long", 3).config
    assert (long.algorithm.name, long.algorithm.lam, long.local.steps, long.local.lr) == ("ditto", 2.0, 9, 0.1)
    prox = planned.job("fedprox", 3).config
    assert (prox.algorithm.mu, prox.local.lr, prox.local.steps) == (0.5, 0.01, 2)
    over = plan(tables, seeds=1, overrides=["local.steps=5", "methods.long.algorithm.lam=7.0"])
    assert over.job("long", 3).config.local.steps == 5 and over.job("long", 3).config.algorithm.lam == 7.0


def test_a_grid_is_the_product_of_its_keys_and_shared_keys_are_searched_for_the_references_too():
    planned = plan(TABLES, ["ditto"], seeds=2, tune=["ditto.lam=[0.1, 1.0]", "local.lr=[0.01, 0.1, 1.0]"])
    assert len(planned.points("ditto")) == 6 and len(planned.points("separate")) == 3
    assert planned.jobs() == (6 + 1) + 2 * (3 + 1)
    assert planned.job("ditto", 3, planned.points("ditto")[-1]).config.algorithm.lam == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"methods": ["dito"]}, "method 'dito' is unknown .did you mean 'ditto'"),
        ({"methods": ["ditto"], "seeds": 0}, "seeds = 0"),
        ({"methods": ["ditto"], "overrides": ["algorithm.name=fedavg"]}, "no place in a comparison"),
        ({"methods": ["ditto"], "tune": ["ditto.lam"]}, r"must be key=\[value"),
        ({"methods": ["ditto"], "tune": ["ditto.lam=3"]}, r"must be key=\[value"),
        ({"methods": ["ditto"], "tune": ["fedprox.mu=[1.0]"]}, "'fedprox' is not local or model"),
        ({"methods": ["ditto"], "tune": ["ditto.lamb=[1.0]"]}, "unknown key 'algorithm.lamb' .did you mean"),
        ({"methods": ["ditto"], "seeds": 1, "tune_seeds": 2}, "tune-seeds = 2"),
    ],
)
def test_mistakes_are_found_before_anything_runs(arguments, says):
    with pytest.raises(ConfigError, match=says):
        plan(TABLES, **arguments)


def test_a_name_of_ones_own_needs_an_algorithm():
    with pytest.raises(ConfigError, match="needs algorithm"):
        plan(TABLES | {"methods": {"mine": {"local": {"lr": 1.0}}}}, seeds=1)


# --- running


def test_the_second_time_nothing_is_trained_and_another_config_gets_folders_of_its_own(tmp_path):
    planned = plan(TABLES, ["ditto"], seeds=1)
    finished(planned, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len({path.parts[len(tmp_path.parts)] for path in before}) == 3
    reused = []
    finished(planned, tmp_path, lambda job, again: reused.append(again) or ())
    assert reused == [True] * 3
    other = plan(TABLES, ["ditto"], seeds=1, overrides=["local.lr=0.2"])
    finished(other, tmp_path)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert before.items() <= after.items() and len(after) == 2 * len(before)


def test_what_makes_a_run_another_run(monkeypatch):
    config = plan(TABLES, ["ditto"], seeds=1).job("ditto", 3).config
    federation = config.federation()
    mine = identity(config, federation)
    engine = plan(TABLES | {"engine": "stacked"}, ["ditto"], seeds=1).job("ditto", 3).config
    assert identity(engine, federation) == mine
    longer = plan(TABLES, ["ditto"], seeds=1, overrides=["rounds=4"]).job("ditto", 3).config
    other_data = plan(TABLES, ["ditto"], seeds=1).job("ditto", 4).config.federation()
    assert len({mine, identity(longer, federation), identity(config, other_data)}) == 3
    monkeypatch.setattr(recipes, "__version__", "99")
    assert identity(config, federation) != mine


@pytest.mark.parametrize(("method", "later"), [("fedamp", "starts='random'"), ("persfl", "ties='earlier'")])
def test_a_setting_that_came_later_makes_another_run_only_where_it_is_used(method, later):
    key, value = later.split("=")
    usual, used = (
        plan(TABLES, [method], seeds=1, overrides=overrides).job(method, 3).config
        for overrides in ([], [f"methods.{method}.algorithm.{key}={value}"])
    )
    federation = usual.federation()
    assert key not in usual.tables()["algorithm"] and key in used.tables()["algorithm"]
    assert parse(usual.tables()) == usual and parse(used.tables()) == used != usual
    assert identity(usual, federation) != identity(used, federation)
    assert key not in described(usual.algorithm) and key in described(used.algorithm)
    assert description(usual.algorithm) != description(used.algorithm) and key not in str(description(usual.algorithm))


class StopAt(Listener):
    def __init__(self, countdown):
        self.countdown = countdown

    def round_ended(self, record, seconds):
        self.countdown[0] -= 1
        if self.countdown[0] == 0:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_stopped_at_any_round_and_started_again_it_ends_with_the_same_table(tmp_path):
    planned = plan(TABLES, ["ditto"], seeds=2, tune=["ditto.lam=[0.1,1.0]"])
    finished(planned, tmp_path / "whole")
    whole = table_without_times(tmp_path / "whole")
    for stop in np.random.default_rng(0).choice(np.arange(1, 20), 3, replace=False):
        folder, countdown = tmp_path / f"stopped-{stop}", [int(stop)]
        with pytest.raises(KeyboardInterrupt):
            finished(planned, folder, lambda job, reused, countdown=countdown: [StopAt(countdown)])
        finished(planned, folder)
        assert table_without_times(folder) == whole


def test_the_search_takes_what_is_best_on_validation_data(tmp_path):
    planned = plan(TABLES, ["fedavg"], seeds=2, tune=["local.lr=[0.000001, 0.5, 0.1]"], tune_seeds=2)
    found = run_plan(planned, tmp_path)
    search = next(s for s in found.searches if s.method == "fedavg")
    for trial in search.trials:
        runs = [Run(tmp_path / name) for name in trial.runs]
        counts = [r.clients() for r in runs]
        by_hand = np.mean([sum(c["personal_val_correct"].to_pylist()) / sum(c["n_val"].to_pylist()) for c in counts])
        assert trial.score == pytest.approx(by_hand)
    best = max(search.trials, key=lambda t: t.score)
    assert search.chosen == best.settings and search.chosen != {"local.lr": 0.000001}
    assert {run.manifest["local"]["lr"] for run in found.methods["fedavg"].values()} == {search.chosen["local.lr"]}


def test_a_search_without_validation_data_says_what_is_missing(tmp_path):
    planned = plan(TABLES | {"splits": [0.7, 0.0, 0.3]}, ["fedavg"], seeds=1, tune=["local.lr=[0.1, 0.2]"])
    with pytest.raises(ConfigError, match="validation data and nobody has any"):
        run_plan(planned, tmp_path)


def test_a_run_that_breaks_down_is_reported_and_the_others_go_on(tmp_path):
    tables = TABLES | {
        "methods": {"wild": {"algorithm": {"name": "fedprox", "mu": 0.0}, "local": {"lr": 9e37}}, "ditto": {}}
    }
    found = finished(plan(tables, seeds=1), tmp_path)
    ((method, seed, why),) = found.failures
    assert (method, seed) == ("wild", 3) and "diverged" in why
    assert found.methods["wild"] == {} and len(found.methods["ditto"]) == 1
    assert json.loads((tmp_path / "comparison.json").read_text())["failures"][0]["method"] == "wild"
