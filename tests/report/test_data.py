"""What a report shows, against run folders with known contents."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from personafl import metrics
from personafl.config import for_method, parse
from personafl.errors import RunError
from personafl.report import find_runs, report_data
from personafl.report.clients import Federations
from personafl.report.methods import collaboration
from personafl.report.origin import again
from personafl.study.judgement import by_method, judge, open_runs
from tests.report.folders import IDS, N, compared, predicted, written


def test_the_judgement_is_that_of_judge_to_the_last_digit(tmp_path):
    found = report_data([compared(tmp_path, seeds=3)])
    expected = judge(by_method(open_runs([tmp_path])))
    for row in expected.records():
        about = ("method", "model", "metric")
        shown = next(r for r in found["judgement"]["metrics"] if all(r[key] == row[key] for key in about))
        for key in ("mean", "standard_error"):
            assert shown[key] == (None if np.isnan(row[key]) else row[key])
    assert [d["p_holm"] for d in found["judgement"]["differences"]] == [d.p_holm for d in expected.differences]
    assert found["judgement"]["best_performance"]["methods"] == []  # ahead, and not shown to be, on three clients
    assert found["judgement"]["winner"] is None
    assert found["judgement"]["result"].startswith("No winner: the 4 models cannot be told apart on these 3 clients")
    json.dumps(found, allow_nan=False)


def test_every_number_says_which_model_it_belongs_to(tmp_path):
    found = report_data([compared(tmp_path)])
    assert [m["label"] for m in found["methods"]] == ["ditto", "fedavg, after local training", "separate"]
    rows = [(found["methods"][r["method"]]["name"], r["model"], r["label"]) for r in found["judgement"]["rows"]]
    assert rows == [
        ("ditto", "personal", "ditto"),
        ("fedavg", "global", "fedavg, global model"),
        ("fedavg", "personal", "fedavg, after local training"),
        ("separate", "personal", "separate"),
    ]


def test_unequal_work_comes_first(tmp_path):
    for method, gradients in (("ditto", 80), ("fedavg", 40)):
        written(tmp_path / method, method, columns={"gradients": [gradients] * 4})
    found = report_data([tmp_path])
    assert found["judgement"]["work"].startswith(
        "The methods did unequal work: a client computed 80 gradients with ditto"
    )
    assert found["judgement"]["answer"][0] == found["judgement"]["work"]
    assert {"gradients", "steps", "megabytes"} <= {c["key"] for c in found["judgement"]["columns"]}
    assert "gradients" not in found["values"][0]["columns"]


def test_each_number_says_on_what_it_was_measured_and_bmta_is_marked(tmp_path):
    columns = {c["key"]: c for c in report_data([compared(tmp_path)])["judgement"]["columns"]}
    assert all(c["about"] for c in columns.values())
    assert "*" in columns["bmta"]["title"] and "optimistic" in columns["bmta"]["about"]


def test_curves_are_means_and_ranges_over_seeds(tmp_path):
    found = report_data([compared(tmp_path)])
    personal = next(c for c in found["curves"] if (c["method"], c["who"], c["measure"]) == (0, "personal", "accuracy"))
    assert personal["rounds"] == [1, 2]
    assert personal["mean"] == pytest.approx([17 / 40, 25.5 / 40])
    assert (personal["low"][1], personal["high"][1]) == pytest.approx((25 / 40, 26 / 40))
    assert [c["method"] for c in found["curves"] if c["who"] == "global" and c["measure"] == "accuracy"] == [0, 1]


def test_clients_of_a_seed_are_those_of_its_federation(tmp_path):
    found = report_data([compared(tmp_path)])
    assert [f["label"] for f in found["federations"]] == ["seed 0", "seed 1"]
    assert found["federations"][0]["ids"] == IDS
    run = next(k for k, r in enumerate(found["runs"]) if (r["method"], r["seed"]) == (0, 1))
    assert found["runs"][run]["federation"] == 1
    assert found["values"][run]["personal"] == pytest.approx([0.9, 0.65, 0.4, None])
    assert found["values"][run]["global"] == pytest.approx([0.6, 0.4, 0.5, None])


def test_many_clients_are_thinned_evenly_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("personafl.report.clients.MOST_VALUES", 250)
    ids = [f"c{m}" for m in range(1000)]
    written(tmp_path / "run", ids=ids, correct=[np.resize([9, 12, 4, 0], 1000)])
    federation = report_data([tmp_path / "run"])["federations"][0]
    assert federation["clients"] == 1000
    assert len(federation["ids"]) == 250 and federation["ids"][0] == "c0" and federation["ids"][-1] == "c999"


def test_classes_come_from_the_labels_of_the_predictions_and_from_nowhere_else(tmp_path):
    table = predicted([0, 0, 1, 1, 1], [-1.0, 1, 1, 1, -1], [0, 0, 0, 1, 1])
    written(tmp_path / "with", predictions=table, columns=None)
    federation = report_data([tmp_path / "with"])["federations"][0]
    assert federation["classes"] == [2, 1, 0, 0]
    first = federation["shares"]["clients"].index("anna")
    assert federation["shares"]["values"][first][:2] == [0.67, 0.33]
    written(tmp_path / "without")
    assert "shares" not in report_data([tmp_path / "without"])["federations"][0]


def test_detection_curves_agree_with_the_metrics(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    scores = (labels + rng.normal(size=400)).astype(np.float32)
    written(tmp_path / "run", predictions=predicted(labels, scores, rng.integers(0, 3, 400)))
    found = report_data([tmp_path / "run"])["detection"][0]
    curve = metrics.det_curve(scores, labels == 1)
    assert found["personal"]["equal_error_rate"] == pytest.approx(metrics.equal_error_rate(curve), rel=1e-4)
    assert found["global"]["equal_error_rate"] == 1.0
    for k in (20, 75, 130):
        at = found["personal"]["false_rejection"][k]
        assert found["personal"]["mean"][k] == pytest.approx(metrics.false_alarm_at(curve, at), abs=2e-3)


def test_self_fl_quantiles_are_those_of_the_clients_who_know_their_uncertainty(tmp_path):
    columns = {"sigma2": [1.0, 2.0, 3.0, float("nan")], "gain": [1.0, 1.5, 4.0, float("nan")]}
    written(tmp_path / "run", "selffl", columns=columns)
    found = report_data([tmp_path / "run"])
    entry = found["uncertainty"][0]
    assert entry["sigma2"][0][entry["quantiles"].index(0.5)] == 2.0
    assert entry["gain"][0] == pytest.approx(np.quantile([1.0, 1.5, 4.0], entry["quantiles"]).tolist())
    assert found["values"][0]["columns"]["gain"] == [1, 1.5, 4, None]


def test_collaboration_blocks_keep_every_row_sum(tmp_path, monkeypatch):
    monkeypatch.setattr("personafl.report.methods.MOST_BLOCKS", 4)
    rng = np.random.default_rng(0)
    ids, groups = [f"c{m}" for m in range(10)], [["x", "y"][m % 2] for m in range(10)]
    run = written(tmp_path / "run", "fedamp", ids=ids, groups=groups, correct=[np.resize([9, 12, 4, 0], 10)])
    weights = rng.dirichlet(np.ones(10), 10).astype(np.float32)
    (run.path / "evaluations").mkdir()
    save_file({"weights": weights}, run.path / "evaluations" / "round-000001.safetensors")
    federations = Federations()
    order = federations.order(federations.add(run))
    assert [groups[m] for m in order[0]] == ["x"] * 5 + ["y"] * 5
    found = collaboration(run, order)
    assert found["each"] == 3 and len(found["weights"]) == 4 and found["groups"][0] == "x"
    sums = np.sum(found["weights"], 1) + np.array(found["own"])
    assert sums == pytest.approx(np.ones(4), abs=5e-3)
    blocks = np.array_split(order[0], 4)
    apart = weights[np.ix_(blocks[0], blocks[2])].sum(1).mean()
    assert found["weights"][0][2] == pytest.approx(apart, rel=5e-3)


def test_a_matrix_of_another_size_is_not_shown(tmp_path):
    run = written(tmp_path / "run", "fedamp")
    (run.path / "evaluations").mkdir()
    save_file({"weights": np.eye(3, dtype=np.float32)}, run.path / "evaluations" / "round-000001.safetensors")
    assert report_data([run.path])["collaboration"] == []
    (run.path / "evaluations" / "round-000001.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(RunError, match=r"round-000001\.safetensors cannot be read"):
        report_data([run.path])


def test_persfl_counts_teachers_and_choices(tmp_path):
    columns = {
        "teacher_round": [1.0, 2.0, 2.0, -1.0],
        "imitation": [0.0, 0.5, 0.5, 0.0],
        "temperature": [1.0, 5.0, 5.0, 1.0],
    }
    written(tmp_path / "run", "persfl", columns=columns, imitations=[0.0, 0.5], temperatures=[1.0, 5.0, 25.0])
    found = report_data([tmp_path / "run"])["distillation"][0]
    assert (found["rounds"], found["clients"], found["never"]) == ([1, 2], [1, 2], 1)
    assert found["chosen"] == [[2, 0], [0, 2], [0, 0]]


def test_an_unfinished_run_is_reported_as_it_is(tmp_path):
    written(tmp_path / "run", correct=[(5, 9, 3, 0), (9, 12, 4, 0)], finished=False, rounds=7)
    found = report_data([tmp_path / "run"])
    assert found["notes"] == [
        "ditto, seed 0, is not finished: round 2 of 7. Its numbers are those of the evaluation after round 2."
    ]
    assert found["values"][0]["personal"][0] == 0.9
    assert not found["runs"][0]["complete"]


def test_a_run_without_any_evaluation_is_named_and_left_out(tmp_path):
    run = written(tmp_path / "a" / "run", finished=False)
    written(tmp_path / "a" / "other", "fedavg", common=(6, 8, 5, 0))
    for part in run.path.glob("clients.parts/*"):
        part.unlink()
    (run.path / "clients.parts").rmdir()
    found = report_data([tmp_path / "a"])
    assert found["notes"] == ["run has no evaluation yet and is left out."]
    assert [m["name"] for m in found["methods"]] == ["fedavg"]
    alone = report_data([run.path])
    assert alone["judgement"] is None and alone["methods"] == []


def test_a_regression_is_judged_by_its_loss(tmp_path):
    written(tmp_path / "a", "ditto", correct=[(0.1, 0.2, 0.3, 0.0)], regression=True)
    written(tmp_path / "b", "fedavg", correct=[(0.3, 0.4, 0.5, 0.0)], regression=True)
    found = report_data([tmp_path])
    assert found["measure"]["key"] == "loss" and found["measure"]["better"] == -1
    assert found["judgement"]["best"] == "ditto"
    assert found["values"][0]["personal"] == pytest.approx([0.1, 0.2, 0.3, None])
    assert {c["measure"] for c in found["curves"]} == {"loss"}


def test_a_comparison_names_its_methods_and_its_searches(tmp_path):
    written(tmp_path / "run-a", "ditto", lam=1.0)
    written(tmp_path / "tried", "ditto", lam=9.0)
    search = {"method": "mild", "measure": "personal_val_accuracy", "chosen": {"algorithm.lam": 1.0},
              "trials": [{"settings": {"algorithm.lam": 1.0}, "score": 0.5, "seconds": 3.0}]}  # fmt: skip
    summary = {"runs": {"mild": {"0": "run-a"}}, "searches": [search], "added": [], "failures": []}
    (tmp_path / "comparison.json").write_text(json.dumps(summary))
    found = report_data([tmp_path])
    assert [m["name"] for m in found["methods"]] == ["mild"] and len(found["runs"]) == 1
    assert found["searches"] == [search]
    assert found["notes"] == []


@pytest.mark.parametrize("runs", [{"m": {"0": "../elsewhere"}}, {"m": {"x": "run"}}, {"m": {"0": 3}}, ["m"]])
def test_a_comparison_cannot_point_elsewhere(tmp_path, runs):
    written(tmp_path / "inside" / "run")
    (tmp_path / "inside" / "comparison.json").write_text(json.dumps({"runs": runs}))
    with pytest.raises(RunError, match=r"comparison\.json"):
        find_runs([tmp_path / "inside"])


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    (tmp_path / "run.toml").write_text("seed = 1\n")
    with pytest.raises(RunError, match="lacks rounds"):
        report_data([tmp_path])


def test_the_config_shown_describes_the_runs_that_were_made(tmp_path):
    """Read as `personafl compare` would, it gives every method the settings of its manifest."""
    import tomllib

    full = {"lr": 0.1, "batch_size": 10, "steps": 3}
    compared(tmp_path)
    for path in tmp_path.iterdir():
        assert full.items() <= find_runs([path]).runs[0][2].manifest["local"].items()
    shown = again(find_runs([tmp_path]))
    assert shown["command"] == "personafl compare config.toml --seeds 2"
    tables = tomllib.loads(shown["config"])
    for method, seed, run in find_runs([tmp_path]).runs:
        config = parse(for_method(tables, method, [f"seed={seed}"])).tables()
        for key in ("seed", "rounds", "activity", "eval_every"):
            assert config[key] == run.manifest[key]
        for key in ("data", "partition", "local", "algorithm"):
            assert run.manifest[key].items() <= config[key].items()
        assert list(config["model"]["hidden"]) == run.manifest["model"]["hidden"]


def test_a_model_from_python_has_no_config(tmp_path):
    run = written(tmp_path / "run")
    manifest = run.manifest | {"model": {"class": "MyNet"}}
    run.folder.write_manifest(manifest)
    assert again(find_runs([run.path])) is None
    assert any(f["value"] == "MyNet" for f in report_data([run.path])["facts"])


def test_a_sample_of_clients_is_said_to_be_one(tmp_path):
    run = written(tmp_path / "run")
    manifest = run.manifest
    manifest["resolved"]["clients"] = 1000
    run.folder.write_manifest(manifest)
    assert report_data([run.path])["notes"] == [
        "Seed 0: 4 of 1,000 clients were evaluated; everything here is about these."
    ]


def test_clients_without_test_data_alone_still_make_a_report(tmp_path):
    written(tmp_path / "run", ids=["a"], correct=[(0,)], regression=True)
    assert N[0] == 10
    folder = written(tmp_path / "none", ids=["a", "b", "c", "d"], correct=[(0, 0, 0, 0)]).path
    json.dumps(report_data([folder]), allow_nan=False)
