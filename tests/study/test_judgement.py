"""A judgement against numbers computed by hand and by scipy, on run folders with known contents."""

import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pytest

from personafl.errors import RunError
from personafl.runs.run import Run
from personafl.storage.folder import RunFolder
from personafl.study.columns import BY_KEY
from personafl.study.judgement import by_method, judge, measure, open_runs
from personafl.study.tables import caption, csv_text, json_values, latex_text, sentences, terminal_tables

SIZES = np.array([10, 20, 10, 0])


def written(
    folder, algorithm, seed, evaluations, common=None, predictions=None, n=SIZES, gradients=None, steps=5.0, **settings
):
    """A run folder as a finished run leaves it: `evaluations` are the clients' correct answers, round after round."""
    files = RunFolder(folder)
    n = np.asarray(n)
    files.create(
        {
            "seed": seed,
            "rounds": len(evaluations),
            "algorithm": {"name": algorithm, **settings},
            "resolved": {"fingerprint": f"data-{seed}", "clients": len(n), "loss": "cross-entropy", "parameters": 1},
        }
    )
    empty = n == 0
    for r, correct in enumerate(evaluations, 1):
        columns = {
            "client": pa.array([f"c{m}" for m in range(len(n))]),
            "round": pa.array([r] * len(n), pa.int32()),
            "n_train": pa.array(50 - 10 * np.arange(len(n)) % 50),
            "n_val": pa.array(np.zeros_like(n)),
            "n_test": pa.array(n),
            "personal_correct": pa.array(correct, pa.int32(), mask=empty),
            "personal_loss": pa.array(np.arange(float(len(n))) + r, mask=empty),
            "global_correct": pa.array(
                common if common is not None else [0] * len(n), pa.int32(), mask=empty | (common is None)
            ),
        }
        if gradients is not None:
            columns["gradients"] = pa.array([gradients] * len(n), pa.int64())
        files.evaluations.write(r, pa.table(columns))
        record = {"round": r, "active": 2, "steps": steps, "bytes_up": 1_000_000 * r, "bytes_down": 500_000 * r}
        if common is not None:
            record["global_accuracy"] = float(np.sum(common) / n.sum())
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
    run = written(tmp_path / "run", "ditto", 0, [[10, 18, 9, 0], [9, 12, 4, 0]], [6, 8, 5, 0], gradients=70)
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
        "steps": 5.0,
        "gradients": 70.0,
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


def test_a_difference_is_tested_on_what_ranks_with_one_pair_a_client(tmp_path):
    """By hand: the weighted difference, summed over seeds for each client, with all 2³ ways to change signs."""
    rng = np.random.default_rng(0)
    results, correct = {"ditto": {}, "separate": {}, "selffl": {}}, {}
    for seed in range(3):
        for shift, method in ((3, "ditto"), (1, "separate"), (2, "selffl")):
            correct[method, seed] = np.minimum(rng.integers(1, 7, 4) + shift, SIZES)
            results[method][seed] = written(tmp_path / f"{method}{seed}", method, seed, [correct[method, seed]])
    found = judge(results)
    assert found.best == "ditto"
    raw = {}
    for method in ("separate", "selffl"):
        gap = sum(correct["ditto", seed] - correct[method, seed] for seed in range(3))[:3]
        flipped = [np.dot(signs, gap) for signs in itertools.product((1, -1), repeat=3)]
        raw[method] = np.mean(np.array(flipped) >= gap.sum())
    low, high = sorted(raw.values())
    corrected = {
        m: min(1.0, 3 * max(2 * low, high if p == high else 0)) for m, p in raw.items()
    }  # any of 3 may be best
    for difference in found.differences:
        m = difference.method
        assert (difference.pairs, difference.seeds) == (3, 3)
        gap = found.mean(m, "accuracy").mean - found.mean("ditto", "accuracy").mean
        assert difference.mean_difference == pytest.approx(gap)
        assert (difference.p, difference.p_holm) == pytest.approx((raw[m], corrected[m]))


def test_who_is_better_for_96_of_100_clients_is_not_shown_as_worse(tmp_path):
    n = np.array([10] * 96 + [500] * 4)
    selffl, ditto = np.full(100, 5), np.full(100, 6)
    selffl[96:], ditto[96:] = 450, 400
    results = {m: {0: written(tmp_path / m, m, 0, [c], n=n)} for m, c in (("selffl", selffl), ("ditto", ditto))}
    found = judge(results)
    (difference,) = found.differences
    assert (found.best, difference.method, difference.ahead, difference.behind) == ("selffl", "ditto", 96, 4)
    assert not difference.significant and difference.p > 0.05
    assert "ditto is ahead of selffl for 96 of 100 clients, though behind over all samples." in sentences(found)
    told = json_values(found)["differences"][0]
    assert told["says"] == "not shown to be worse than selffl; better for 96 and worse for 4 of 100 clients"
    cells = [str(cell) for table in terminal_tables(found) for column in table.columns for cell in column._cells]
    assert "73.51†" in cells and "† not shown to be worse than selffl" in caption(found)


def clear(tmp_path, clients, seeds=1, gaps=None, methods=("selffl", "ditto")):
    """The first method is better for each of so many clients, by two answers of ten, or as `gaps` say, seed by seed."""
    results = {m: {} for m in methods}
    for seed, (k, method) in itertools.product(range(seeds), enumerate(methods)):
        gap = 2 if gaps is None else gaps[seed]
        correct = np.full(clients, 5) + gap * (k == 0)
        results[method][seed] = written(tmp_path / f"{method}{seed}", method, seed, [correct], n=np.full(clients, 10))
    return judge(results)


def test_a_winner_is_named_where_it_is_shown_to_be_better_than_everybody(tmp_path):
    found = clear(tmp_path, 12, methods=("selffl", "ditto", "fedamp"))
    assert found.winner == "selffl" and all(d.significant for d in found.differences)
    first = sentences(found)[0]
    assert first.startswith(
        "selffl has the highest accuracy, 70.00%, and is shown to be better than each of the 2 other"
    )
    assert "12 clients and 1 seed" in first and "another training may decide otherwise" in first
    assert json_values(found)["winner"] == {"method": "selffl", "model": "personal", "label": "selffl"}


def test_four_hospitals_cannot_have_a_winner(tmp_path):
    found = clear(tmp_path, 4, seeds=5)
    assert found.best == "selffl" and found.winner is None
    assert sentences(found)[0] == (
        "No winner: the 2 models cannot be told apart on these 4 clients and 5 seeds (accuracy from 50.00% (ditto) to "
        "70.00% (selffl)). So few clients cannot show any difference between 2 models: that takes at least 6."
    )
    assert json_values(found)["winner"] is None
    assert found.performance.winners == () and found.fairness.winners == ()


def test_seeds_that_disagree_show_nothing(tmp_path):
    found = clear(tmp_path, 20, seeds=3, gaps=(4, -1, 1))
    (difference,) = found.differences
    assert difference.p_holm < 0.01 and (difference.seeds_behind, difference.seeds) == (2, 3)
    assert found.winner is None and "behind in 2 of 3 seeds only" in json_values(found)["differences"][0]["says"]
    assert clear(tmp_path / "agree", 20, seeds=3, gaps=(4, 1, 1)).winner == "selffl"


def test_some_may_be_shown_to_be_worse_without_a_winner(tmp_path):
    n, rng = np.full(20, 10), np.random.default_rng(0)
    answers = {"selffl": 6 + rng.integers(0, 2, 20), "ditto": 6 + rng.integers(0, 2, 20), "fedamp": np.full(20, 2)}
    found = judge({m: {0: written(tmp_path / m, m, 0, [c], n=n)} for m, c in answers.items()})
    _, other = sorted(("selffl", "ditto"), key=lambda m: -answers[m].sum())
    assert found.winner is None
    assert f"Not shown to be worse: {other}. Shown to be worse: fedamp." in sentences(found)[0]


def test_runs_on_other_data_are_not_paired(tmp_path):
    found = clear(tmp_path, 12)
    assert found.winner == "selffl"
    manifest = RunFolder(tmp_path / "ditto0").manifest()
    manifest["resolved"]["fingerprint"] = "other"
    RunFolder(tmp_path / "ditto0").write_manifest(manifest)
    found = judge(by_method([Run(tmp_path / "selffl0"), Run(tmp_path / "ditto0")]))
    assert found.differences == [] and found.winner is None


def test_the_votes_name_nobody_who_is_not_shown_to_be_ahead(tmp_path):
    found = judge(three(tmp_path))
    assert sorted(found.performance.wins["ditto"]) == ["api", "mean_accuracy", "mpi", "pui"]
    assert found.performance.winners == () and found.fairness.winners == ()
    assert "not shown to be more than chance" in found.performance.why
    said = sentences(found)
    assert said[-2].startswith("Best performance: no winner (ditto is ahead on mean accuracy, PUI, MPI and API")


def many(tmp_path, alone, common, **methods):
    """Methods on 30 clients with 100 test samples each, beside training alone and FedAvg with these accuracies in %."""
    answers = {"separate": alone, "fedavg": common, **methods}
    n = np.full(30, 100)
    full = {m: np.broadcast_to(np.asarray(c), 30) for m, c in answers.items()}
    return {m: {0: written(tmp_path / m, m, 0, [c], c if m == "fedavg" else None, n=n)} for m, c in full.items()}


def test_who_harms_more_clients_than_it_improves_wins_no_vote(tmp_path):
    fedamp = np.where(np.arange(30) < 3, 99, 50)  # a tenth improved, by much; the others harmed
    found = judge(many(tmp_path, 60, 60, fedamp=fedamp, ditto=62 + np.arange(30) % 3))
    assert found.mean("fedamp", "mpi").mean > found.mean("ditto", "mpi").mean
    assert found.performance.winners == ("ditto",)
    assert found.performance.wins == {"ditto": ["mean_accuracy", "pui", "mpi", "api"]}
    assert "as they do not improve more clients than they harm: fedavg, after local training; fedamp" in (
        found.performance.why
    )
    found = judge(many(tmp_path / "none", 60, 60, fedamp=fedamp))
    assert found.performance.winners == found.fairness.winners == ()
    assert found.fairness.why == "no method improves more clients than it harms"


def test_clients_that_cannot_improve_do_not_keep_a_method_from_being_fair(tmp_path):
    """Twenty of thirty clients are at 100% already: a third improves, and nobody is harmed."""
    alone = np.where(np.arange(30) < 20, 100, 60)
    even = np.where(np.arange(30) < 20, 100, 70)
    uneven = np.where(np.arange(30) < 20, 100, 61 + 4 * (np.arange(30) - 20).clip(0))
    found = judge(many(tmp_path, alone, 50, ditto=even, selffl=uneven))
    assert found.mean("ditto", "pui").mean == pytest.approx(100 / 3)
    assert sorted(found.fairness.wins["ditto"]) == ["av", "cs", "entropy"]
    assert found.fairness.winners == ("ditto",)


def test_jains_index_is_no_vote_and_entropy_only_over_equal_sets(tmp_path):
    found = judge(many(tmp_path, 60, 60, ditto=61 + np.arange(30) % 5, selffl=61 + np.arange(30) % 20))
    assert {k for won in found.fairness.wins.values() for k in won} == {"av", "cs", "entropy"}
    selffl = 60 + np.arange(30) % 20  # two of them are not improved
    found = judge(many(tmp_path / "unequal", 60, 60, ditto=61 + np.arange(30) % 5, selffl=selffl))
    assert {k for won in found.fairness.wins.values() for k in won} == {"av", "cs"}


def test_fedavgs_own_number_is_a_row_of_its_own(tmp_path):
    found = judge(three(tmp_path))
    assert [row.name for row in found.rows] == [
        "ditto", "separate", "fedavg, global model", "fedavg, after local training",
    ]  # fmt: skip
    assert found.mean("fedavg (global)", "accuracy").mean == pytest.approx(19 / 40)
    assert found.mean("fedavg", "accuracy").mean == pytest.approx(19 / 40)
    lines = [line.split(",") for line in csv_text(found).splitlines() if line.startswith("fedavg,mean_accuracy,")]
    assert [(float(line[2]), line[-1]) for line in lines] == [
        (0.5, "global"),
        (pytest.approx(1.45 / 3, rel=1e-5), "personal"),
    ]
    told = [(r["method"], r["model"], r["label"]) for r in json_values(found)["metrics"] if r["metric"] == "accuracy"]
    assert ("fedavg", "global", "fedavg, global model") in told
    assert ("fedavg", "personal", "fedavg, after local training") in told
    assert "fedavg, global model &" in latex_text(found) and "(fedavg, after local training) &" in latex_text(
        found, ("fedavg",)
    )
    first = terminal_tables(found)[0].columns[0]._cells
    assert [str(cell) for cell in first] == [row.name for row in found.rows]


def test_a_global_model_that_is_best_is_called_so(tmp_path):
    results = many(tmp_path, 60, 80)
    results["fedavg"][0] = written(
        tmp_path / "again", "fedavg", 0, [np.full(30, 70)], np.full(30, 80), n=np.full(30, 100)
    )
    found = judge(results)
    assert found.winner == "fedavg (global)"
    assert json_values(found)["winner"] == {"method": "fedavg", "model": "global", "label": "fedavg, global model"}
    assert json_values(found)["best"] == "fedavg"


@pytest.mark.parametrize(
    ("work", "first"),
    [
        ({"gradients": (4800, 2400)}, "The methods did unequal work: a client computed 4,800 gradients with selffl, "
         "2,400 with ditto; `personafl compare --equal-work` gives each the same."),
        ({"gradients": (2500, 2400)}, "All methods did the same work: a client computed about 2,450 gradients."),
        ({"steps": (40.0, 20.0)}, "The methods did unequal work: a client took in a round 40.0 steps with selffl, 20.0 "
         "with ditto; `personafl compare --equal-work` gives each the same."),
        ({"steps": (20.0, 20.0)}, "No winner"),  # without gradients nothing says that the work was the same
        ({"gradients": (2400, 2400), "steps": (40.0, 20.0)}, "All methods did the same work"),
    ],
)  # fmt: skip
def test_unequal_work_is_said_first(tmp_path, work, first):
    results = {}
    for k, method in enumerate(("selffl", "ditto")):
        settings = {key: values[k] for key, values in work.items()}
        results[method] = {0: written(tmp_path / method, method, 0, [[5, 5, 5, 0]], **settings)}
    found = judge(results)
    assert sentences(found)[0].startswith(first)
    assert json_values(found)["answer"] == sentences(found)
    for key, values in work.items():
        assert [found.mean(m, key).mean for m in ("selffl", "ditto")] == list(values)
        shown = [str(cell) for table in terminal_tables(found) for column in table.columns if column.header == key
                 for cell in column._cells]  # fmt: skip
        assert shown == [BY_KEY[key].write(v) for v in values]


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
    assert lines[0] == "method,metric,mean,standard_error,seeds,about,model"
    assert any(line.startswith("ditto,accuracy,0.625,0,2,") for line in lines)
    latex = latex_text(found, ("separate", "fedavg"))
    assert r"ditto & \textbf{62.50} $\pm$ 0.00" in latex
    assert latex.count("{") == latex.count("}") and "(separate)" in latex
    cells = [str(cell) for table in terminal_tables(found) for column in table.columns for cell in column._cells]
    assert "62.50 ± 0.00" in cells
    assert "optimistic" in caption(found) and "test data" in caption(found)
    assert "best mean test accuracy" in caption(found)
    assert "No winner: the 4 models cannot be told apart" in sentences(found)[0]
