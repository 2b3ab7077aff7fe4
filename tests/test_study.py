"""A judgement against numbers computed by hand and by scipy, on run folders with known contents."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from personafl.errors import RunError
from personafl.folder import RunFolder
from personafl.run import Run
from personafl.study import BY_KEY, by_method, judge, measure, open_runs
from personafl.study_tables import caption, csv_text, json_values, latex_text, sentences, terminal_tables

N = np.array([10, 20, 10, 0])
TRAIN = np.array([50, 40, 30, 20])


def written(folder, algorithm, seed, evaluations, common=None, predictions=None, **settings):
    """A run folder as a finished run leaves it: `evaluations` are the clients' correct answers, round after round."""
    files = RunFolder(folder)
    files.create(
        {
            "seed": seed,
            "algorithm": {"name": algorithm, **settings},
            "resolved": {"fingerprint": f"data-{seed}"},
        }
    )
    empty = N == 0
    for r, correct in enumerate(evaluations, 1):
        columns = {
            "client": pa.array([f"c{m}" for m in range(len(N))]),
            "round": pa.array([r] * len(N), pa.int32()),
            "n_train": pa.array(TRAIN),
            "n_test": pa.array(N),
            "personal_correct": pa.array(correct, pa.int32(), mask=empty),
            "personal_loss": pa.array(np.arange(4.0) + r, mask=empty),
            "global_correct": pa.array(
                common if common is not None else [0] * 4, pa.int32(), mask=empty | (common is None)
            ),
        }
        files.write_clients(r, pa.table(columns))
        record = {"round": r, "bytes_up": 1_000_000 * r, "bytes_down": 500_000 * r, "personal_loss": 1.0}
        if common is not None:
            record["global_accuracy"] = float(np.sum(common) / N.sum())
        files.append("rounds.jsonl", record)
        files.append("timings.jsonl", {"round": r, "round_seconds": 2.0})
    files.merge_clients()
    if predictions is not None:
        files.write_predictions(predictions)
    return Run(folder)


def three(tmp_path, seeds=1):
    """Training alone, FedAvg and Ditto; clients' accuracies .5 .5 .5, .6 .4 .5 and .9 .6 .4."""
    results = {"ditto": {}, "separate": {}, "fedavg": {}}
    for seed in range(seeds):
        results["ditto"][seed] = written(
            tmp_path / f"d{seed}", "ditto", seed, [[10, 18, 9, 0], [9, 12, 4, 0]], [6, 8, 5, 0]
        )
        results["separate"][seed] = written(tmp_path / f"s{seed}", "separate", seed, [[5, 10, 5, 0]])
        results["fedavg"][seed] = written(tmp_path / f"f{seed}", "fedavg", seed, [[5, 9, 5, 0]], [6, 8, 5, 0])
    return results


def test_the_columns_of_a_run_by_hand(tmp_path):
    run = written(tmp_path / "run", "ditto", 0, [[10, 18, 9, 0], [9, 12, 4, 0]], [6, 8, 5, 0])
    found = measure(run, local=np.array([0.5, 0.5, 0.5, np.nan]), common=np.array([0.6, 0.4, 0.5, np.nan]))
    by_hand = {
        "accuracy": 25 / 40,
        "mean_accuracy": (0.9 + 0.6 + 0.4) / 3,
        "sd": np.std([0.9, 0.6, 0.4], ddof=1),
        "worst_10": 0.4,
        "top_10": 0.9,  # one client of three: the one with 50 training samples
        "bmta": (1.0 + 0.9 + 0.9) / 3,  # the first evaluation was better
        "global_accuracy": 19 / 40,
        "loss": (10 * 2 + 20 * 3 + 10 * 4) / 40,
        "seconds": 4.0,
        "megabytes": 3.0,
        # QoI is .9 − .6, .6 − .5, .4 − .5
        "pui": 200 / 3,
        "pud": 100 / 3,
        "api": 0.2,
        "mpi": 0.2,
        "apd": -0.1,
        "mpd": -0.1,
        "av": np.var([0.3, 0.1]),
        "cs": 0.2 / math.sqrt((0.09 + 0.01) / 2),
        "entropy": -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)),
        "ji": 0.4**2 / (2 * (0.09 + 0.01)),
    }
    assert found == pytest.approx(by_hand)
    assert set(by_hand) == set(BY_KEY) - {"f1", "ece"}


def test_f1_and_calibration_come_from_the_predictions(tmp_path):
    table = pa.table(
        {
            "client": ["c0"] * 4,
            "label": pa.array([0, 0, 1, 1], pa.int32()),
            "personal_class": pa.array([0, 1, 1, 1], pa.int32()),
            "personal_confidence": pa.array([0.9, 0.7, 0.7, 0.9], pa.float32()),
        }
    )
    found = measure(written(tmp_path / "run", "ditto", 0, [[1, 1, 1, 0]], predictions=table))
    assert found["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert found["ece"] == pytest.approx(0.5 * abs(1.0 - 0.9) + 0.5 * abs(0.5 - 0.7), abs=1e-6)


def test_without_training_alone_there_is_no_improvement_to_speak_of(tmp_path):
    results = three(tmp_path)
    del results["separate"]
    assert not {"pui", "ji"} & {column.key for column in judge(results).columns}


def test_runs_on_other_data_are_no_reference(tmp_path):
    results = three(tmp_path)
    manifest = RunFolder(tmp_path / "s0").manifest()
    manifest["resolved"]["fingerprint"] = "other"
    RunFolder(tmp_path / "s0").write_manifest(manifest)
    results["separate"][0] = Run(tmp_path / "s0")
    assert "pui" not in {column.key for column in judge(results).columns}


def test_significance_is_wilcoxons_over_clients_of_all_seeds_with_holm(tmp_path):
    rng = np.random.default_rng(0)
    results = {"ditto": {}, "separate": {}, "fedavg": {}}
    for seed in range(3):
        for shift, method in ((3, "ditto"), (1, "separate"), (2, "fedavg")):
            correct = np.minimum(rng.integers(1, 7, 4) + shift, N)
            results[method][seed] = written(tmp_path / f"{method}{seed}", method, seed, [correct], [5, 5, 5, 0])
    found = judge(results)
    assert found.best == "ditto"

    def everybody(method):
        return np.concatenate([run.clients()["personal_accuracy"].to_numpy()[:3] for run in results[method].values()])

    raw = {m: stats.wilcoxon(everybody(m), everybody("ditto"), correction=False).pvalue for m in ("separate", "fedavg")}
    low, high = sorted(raw.values())
    holm = {m: max(2 * low, high) if p == high else min(1.0, 2 * low) for m, p in raw.items()}
    for difference in found.differences:
        assert difference.pairs == 9
        assert difference.mean_difference == pytest.approx(np.mean(everybody(difference.method) - everybody("ditto")))
        assert difference.p == pytest.approx(raw[difference.method], rel=0.15)
        assert difference.p_holm == pytest.approx(holm[difference.method], rel=0.15)


def test_the_two_questions_are_decided_by_most_metrics(tmp_path):
    found = judge(three(tmp_path))
    assert found.performance.winners == ("ditto",)
    assert sorted(found.performance.wins["ditto"]) == ["api", "mean_accuracy", "mpi", "pui"]
    assert found.fairness.winners == ("ditto",)  # the only one that improves at least half of the clients


def test_nobody_is_fair_who_improves_few(tmp_path):
    results = three(tmp_path)
    results["ditto"][0] = written(tmp_path / "one", "ditto", 0, [[9, 4, 4, 0]])
    assert judge(results).fairness.winners == ()
    assert "half of the clients" in judge(results).fairness.why


def test_seeds_give_mean_and_standard_error(tmp_path):
    results = three(tmp_path, seeds=2)
    results["ditto"][1] = written(tmp_path / "other", "ditto", 1, [[9, 16, 4, 0]])
    found = judge(results).mean("ditto", "accuracy")
    assert (found.mean, found.standard_error) == pytest.approx((27 / 40, 2 / 40))


def test_runs_find_their_method(tmp_path):
    a = written(tmp_path / "a", "ditto", 0, [[1, 1, 1, 0]], lam=0.1)
    b = written(tmp_path / "b", "ditto", 0, [[1, 1, 1, 0]], lam=1.0)
    c = written(tmp_path / "c", "fedavg", 0, [[1, 1, 1, 0]])
    d = written(tmp_path / "d", "fedavg", 1, [[1, 1, 1, 0]])
    assert {m: {s: r.path.name for s, r in runs.items()} for m, runs in by_method([a, b, c, d]).items()} == {
        "ditto (lam=0.1)": {0: "a"},
        "ditto (lam=1.0)": {0: "b"},
        "fedavg": {0: "c", 1: "d"},
    }
    with pytest.raises(RunError, match="same method with the same seed"):
        by_method([a, a])
    assert [run.path.name for run in open_runs([tmp_path])] == ["a", "b", "c", "d"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds none"):
        open_runs([tmp_path / "empty"])


def test_every_form_of_the_table_has_the_same_numbers(tmp_path):
    found = judge(three(tmp_path, seeds=2))
    values = json_values(found)
    json.dumps(values, allow_nan=False)
    by_json = {(r["method"], r["metric"]): r["mean"] for r in values["metrics"]}
    assert by_json["ditto", "accuracy"] == pytest.approx(25 / 40)
    assert by_json["separate", "ji"] is None
    lines = csv_text(found).splitlines()
    assert lines[0] == "method,metric,mean,standard_error,seeds,about"
    assert any(line.startswith("ditto,accuracy,0.625,0,2,") for line in lines)
    latex = latex_text(found, ("separate", "fedavg"))
    assert r"ditto & \textbf{62.50} $\pm$ 0.00" in latex
    assert latex.count("{") == latex.count("}") and "(separate)" in latex
    cells = [str(cell) for table in terminal_tables(found) for column in table.columns for cell in column._cells]
    assert "62.50 ± 0.00" in cells
    assert "optimistic" in caption(found) and "test data" in caption(found)
    assert sentences(found)[0].startswith("Best performance: ditto")
