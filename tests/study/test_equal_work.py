"""Equal work, on real digits: methods whose steps cost differently compute equally many gradients."""

import json

import numpy as np
import pytest
import tomli_w

from personafl.comparison import Comparison
from personafl.study.equal_work import gradients_per_client
from personafl.study.launch import run_plan
from personafl.study.plan import plan

TABLES = {
    "rounds": 6,
    "eval_every": 0,
    "activity": 0.5,
    "splits": [0.5, 0.1, 0.4],
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.3, "min_samples": 10},
    "model": {"name": "mclr"},
    "local": {"steps": 4, "lr": 0.1},
    "engine": {"name": "stacked", "threads": 1},
    "methods": {
        "persfl": {"algorithm": {"temperatures": [1.0, 5.0], "imitations": [0.0, 0.5], "distill_epochs": 1}},
        "selffl": {"algorithm": {"l_max": 6}},
    },
}
METHODS = ["selffl", "ditto", "persfl", "pfedme", "fedavg-ft"]


def work_of(found) -> dict[str, float]:
    return {
        m: float(np.mean([gradients_per_client(run) for run in runs.values()])) for m, runs in found.methods.items()
    }


def test_totals_agree_to_within_a_tenth_and_nobody_is_cut_back(tmp_path):
    configured = work_of(run_plan(plan(TABLES, METHODS, seeds=1), tmp_path))
    assert max(configured.values()) > 3 * min(configured.values())
    planned = plan(TABLES, METHODS, seeds=1, equal_work=True)
    found = run_plan(planned, tmp_path)
    work = work_of(found)
    assert set(work) == {*METHODS, "separate", "fedavg"}
    assert max(work.values()) / min(work.values()) < 1.1
    assert all(work[m] >= 0.95 * configured[m] for m in work)
    assert found.work.budget == max(configured.values()) and found.work.apart < 0.1
    told = {m: (w.configured, w.gradients) for m, w in found.work.methods.items()}
    assert told == {m: (configured[m], work[m]) for m in work}
    most = max(configured, key=lambda m: configured[m])
    assert found.work.methods[most].changed == {}
    # Who follows the settings gets steps; Self-FL, which does not, gets rounds.
    assert list(found.work.methods["fedavg"].changed) == ["local.steps"]
    assert list(found.work.methods["selffl"].changed) == ["rounds"]
    fedavg = found.methods["fedavg"][0].manifest
    assert fedavg["local"]["steps"] == found.work.methods["fedavg"].changed["local.steps"] > 4
    reused = []
    run_plan(planned, tmp_path, lambda job, again: reused.append(again) or ())
    assert reused and all(reused)


def test_where_whole_steps_are_too_coarse_rounds_do_it(tmp_path):
    """Two steps of Ditto are four gradients; five are between two and three steps."""
    tables = TABLES | {
        "rounds": 8,
        "activity": 1.0,
        "methods": {"long": {"algorithm": {"name": "fedavg"}, "local": {"steps": 5}}, "ditto": {"local": {"steps": 2}}},
    }
    found = run_plan(plan(tables, ["long", "ditto"], seeds=1, equal_work=True), tmp_path)
    assert found.work.methods["ditto"].changed == {"rounds": 10}
    assert found.work.methods["fedavg"].changed == {"local.steps": 5}  # the reference that came along
    assert set(work_of(found).values()) == {40.0}
    assert "40 to 40 gradients per client (0.0% apart)" in found.work.sentence()


def test_epochs_stay_epochs(tmp_path):
    tables = TABLES | {"local": {"epochs": 1, "lr": 0.1}, "activity": 1.0, "rounds": 2}
    found = run_plan(plan(tables, ["ditto"], seeds=1, equal_work=True), tmp_path)
    assert found.work.methods["fedavg"].changed == {"local.epochs": 2}
    assert found.work.apart == 0


def test_after_a_search_with_what_it_has_chosen(tmp_path):
    tables = TABLES | {"splits": [0.5, 0.2, 0.3], "rounds": 2, "activity": 1.0}
    tune = ["pfedme.inner_steps=[1, 3]"]
    planned = plan(tables, ["pfedme"], seeds=2, tune=tune, equal_work=True)
    found = run_plan(planned, tmp_path)
    inner = found.searches[0].chosen["algorithm.inner_steps"]
    manifests = [run.manifest for run in found.methods["pfedme"].values()]
    assert [m["algorithm"]["inner_steps"] for m in manifests] == [inner] * 2
    assert set(work_of(found).values()) == {2 * 4 * inner}


def test_the_comparison_says_so(tmp_path):
    tables = TABLES | {"rounds": 2, "activity": 1.0}
    found = run_plan(plan(tables, ["ditto"], seeds=1, equal_work=True), tmp_path)
    Comparison(**vars(found)).write()
    told = json.loads((tmp_path / "comparison.json").read_text())
    assert told["equal_work"]["methods"]["fedavg"] == {
        "configured": 8.0, "changed": {"local.steps": 8}, "gradients": 16.0
    }  # fmt: skip
    assert told["runs"]["fedavg"]["0"] == found.methods["fedavg"][0].path.name
    assert "fedavg local.steps = 8" in told["equal_work"]["sentence"]
    from personafl.report.data import report_data

    assert told["equal_work"]["sentence"] in report_data([tmp_path])["notes"]


def test_a_method_that_breaks_down_does_not_stop_the_others(tmp_path):
    wild = {"algorithm": {"name": "fedprox", "mu": 0.0}, "local": {"lr": 9e37}}
    tables = TABLES | {"rounds": 2, "activity": 1.0, "methods": {"wild": wild, "ditto": {}}}
    found = run_plan(plan(tables, seeds=1, equal_work=True), tmp_path)
    assert found.methods["wild"] == {} and found.failures[0][0] == "wild"
    assert {m: w for m, w in work_of_finished(found).items()} == {"ditto": 16.0, "separate": 16.0, "fedavg": 16.0}


def work_of_finished(found) -> dict[str, float]:
    return {m: gradients_per_client(runs[0]) for m, runs in found.methods.items() if runs}


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    from personafl.cli import main

    (tmp_path / "c.toml").write_text(tomli_w.dumps(TABLES | {"rounds": 2, "activity": 1.0}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["personafl", "compare", "c.toml", "-a", "ditto", "--seeds", "1", "--equal-work"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert "Equal work: every method computed 16 to 16 gradients per client" in " ".join(
        capsys.readouterr().out.split()
    )
