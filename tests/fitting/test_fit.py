"""A whole fit on small real data: what it chooses on, what it writes, and what it says of bad input."""

import json
import shutil
import signal
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import personafl as pf
from personafl.algorithms import Ditto
from personafl.config import read_config
from personafl.errors import ConfigError, DataError, RunError
from personafl.fitting.candidates import REFERENCES
from personafl.fitting.training import Trainer
from personafl.report import page, report_data
from personafl.runs.run import Run

QUICK = {"rounds": 6, "local": pf.Local(lr=0.3, steps=10, batch_size=10), "engine": "stacked", "threads": 1,
         "progress": False}  # fmt: skip


@pytest.fixture(scope="module")
def federation() -> pf.Federation:
    return pf.data.build(
        pf.data.Digits(), pf.partition.Dirichlet(clients=16, alpha=0.3, min_samples=10), (0.5, 0.25, 0.25), seed=1
    )


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


@pytest.fixture(scope="module")
def found(federation, tmp_path_factory) -> pf.Fit:
    out = tmp_path_factory.mktemp("fits") / "fit"
    return pf.fit(federation, module(), methods=["ditto", "fedamp"], trials=9, seed=3, out=out, **QUICK)


def hits(fitted: pf.Fit, federation: pf.Federation, split: str) -> list[int]:
    """By hand: the model of each client, asked about each of its samples."""
    counts = []
    for client in federation.ids:
        x, y = federation.client(client)[split]
        with torch.no_grad():
            counts.append(int((fitted.personal(client)(x).argmax(1) == y).sum()))
    return counts


def test_the_numbers_are_those_of_the_models_that_it_hands_out(found, federation):
    table = pq.read_table(found.path / "clients.parquet")
    assert table.column("personal_correct").to_pylist() == hits(found, federation, "test")
    total = sum(hits(found, federation, "test")) / int(federation.sizes("test").sum())
    assert found.number["value"] == pytest.approx(total)
    low, high = found.number["interval"]
    assert low <= total <= high
    assert found.score["personal_accuracy"] == pytest.approx(total)


def test_pictures_and_frames_are_its_tables(found):
    import matplotlib

    matplotlib.use("Agg")
    table = found.table().to_pydict()
    for over in ("alone", "global"):
        wanted = sorted((100 * gain for gain in table[f"gain_over_{over}"] if gain is not None), reverse=True)
        ax = found.plot.gains(over)
        np.testing.assert_allclose([bar.get_height() for bar in ax.patches], wanted)
    whole = sum(bar.get_height() for bar in found.plot.weights().patches)
    np.testing.assert_allclose(whole, len(table["client"]), rtol=1e-5)  # weights are written with six digits
    scores = [o["score"] for trial in found.summary["trials"] for o in trial["outcomes"] if o["score"] is not None]
    shown = np.concatenate([dots.get_offsets()[:, 1] for dots in found.plot.tried().collections])
    np.testing.assert_allclose(np.sort(shown), 100 * np.sort(scores))
    assert found.plot.curves().lines[0].get_ydata()[-1] == pytest.approx(100 * max(scores))
    assert found.table(frame="arrow").to_pydict() == table
    html = found._repr_html_()
    assert all(sentence.split("'")[0] in html for sentence in found.sentences())
    matplotlib.pyplot.close("all")


def test_on_validation_data_never_worse_than_the_best_candidate(found, federation):
    """Of models that have not seen it: those before the last training."""
    own = sum(found.clients().column("personal_val_correct").to_pylist()) / int(federation.sizes("val").sum())
    best = max(o["score"] for trial in found.summary["trials"] for o in trial["outcomes"] if o["score"] is not None)
    assert own >= best - 1e-9


def test_the_last_training_is_that_of_the_finalist_on_validation_data_as_well(found, federation):
    """The same method and settings, trained by hand on both."""
    assert found.summary["refit"] and "trained again, with the validation data" in repr(found)
    clients = {}
    for client in federation.ids:
        split = federation.client(client)
        both = [torch.cat([split["train"][part], split["val"][part]]) for part in (0, 1)]
        clients[client] = {"train": tuple(both), "test": split["test"]}
    whole = pf.Federation.from_clients(clients)
    for place, model in enumerate(found.summary["finalists"]):
        algorithm = found.finalist(place).algorithm
        local = replace(QUICK["local"], **{k[6:]: v for k, v in model["settings"].items() if k.startswith("local.")})
        settings = {**QUICK, "local": local, "rounds": model["rounds"]}
        by_hand = pf.train(whole, module(), algorithm, seed=3, **settings)
        assert model["folder"] != model["searched"]
        theirs, ours = by_hand.clients(), found.finalist(place).clients()
        for column in ("personal_correct", "n_train", "n_test"):
            assert ours.column(column).to_pylist() == theirs.column(column).to_pylist(), (model["label"], column)


def test_the_choice_is_the_same_without_the_last_training(found, federation):
    plain = pf.fit(federation, module(), methods=["ditto", "fedamp"], trials=9, seed=3, refit=False, **QUICK)
    assert not plain.summary["refit"] and "trained again" not in repr(plain)
    for key in ("weights", "way", "ways", "newcomer"):
        assert plain.summary[key] == found.summary[key], key
    for model in plain.summary["finalists"]:
        assert model["folder"] == model["searched"]
    column = "personal_val_loss"
    assert plain.clients().column(column).to_pylist() == found.clients().column(column).to_pylist()


def test_a_last_training_that_cannot_be_done_in_time_is_left_out(federation, monkeypatch):
    """Nothing of it is used: neither models that were trained again nor their numbers."""
    train, again = Trainer.train, []

    def slow(self, attempt, until, listeners=()):
        again.append(attempt.again)
        return None if sum(again) > 2 else train(self, attempt, until, listeners)

    monkeypatch.setattr(Trainer, "train", slow)
    cut = pf.fit(federation, module(), methods=["ditto"], trials=5, seed=3, **QUICK)
    assert sum(again) == 3, "two were done, the third was not"
    assert not cut.summary["refit"] and "There was no time to train the finalists again" in repr(cut)
    assert all(model["folder"] == model["searched"] for model in cut.summary["finalists"])


def test_test_data_changes_no_choice(found, federation):
    starts, sizes = federation.starts("test"), federation.sizes("test")
    rows = np.concatenate([np.arange(a, a + n) for a, n in zip(starts, sizes, strict=True)])
    y = federation.y.clone()
    y[rows] = y[rows][torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    other = pf.fit(replace(federation, y=y), module(), methods=["ditto", "fedamp"], trials=9, seed=3, **QUICK)
    for key in ("weights", "finalists", "way", "newcomer"):
        assert other.summary[key] == found.summary[key], key
    assert other.number["value"] < 0.5 < found.number["value"]


def test_references_are_always_finalists_and_gains_are_differences_to_them(found):
    assert {"alone", "one model", "fedavg-ft"} <= {model["label"] for model in found.summary["finalists"]}
    assert {trial["method"] for trial in found.summary["trials"]} >= {*REFERENCES, "ditto", "fedamp"}
    for row in found.table().to_pylist():
        assert row["gain_over_alone"] == pytest.approx(row["accuracy"] - row["alone_accuracy"])
        assert row["gain_over_global"] == pytest.approx(row["accuracy"] - row["global_accuracy"])
    for who in ("alone", "global"):
        counts = found.number[who]
        assert counts["better"] + counts["worse"] + counts["same"] == len(found.table())


def test_saved_tensors_are_the_models_with_an_axis_for_clients(found, federation):
    assert found.summary["way"]["kind"] == "mixture", "the case that is worth a test"
    saved = load_file(found.path / "models" / "personal.safetensors")
    for place, client in enumerate(federation.ids[:3]):
        net = found.personal(client)
        x = federation.client(client)["test"][0]
        weights = saved["weights"][place]
        mixed = torch.zeros(len(x), 10)
        for part, weight in enumerate(weights.tolist()):
            w, b = (saved[f"models.{part}.{name}"][place] for name in ("weight", "bias"))
            mixed += weight * (x @ w.T + b).softmax(1)
        with torch.no_grad():
            torch.testing.assert_close(net(x).softmax(1), mixed, atol=1e-5, rtol=1e-4)


def test_a_fit_is_found_again(found, federation):
    again = pf.load_fit(found.path, module=module())
    x = federation.client("client-1")["test"][0]
    with torch.no_grad():
        torch.testing.assert_close(again.personal("client-1")(x), found.personal("client-1")(x))
    assert again.table().equals(found.table()) and again.complete
    with pytest.raises(RunError, match="is the folder of a fit, not of one run"):
        pf.load_run(found.path)
    assert "which no choice has seen" in repr(again)


def test_newcomers_get_the_mixture_of_one_of_whom_nothing_is_known(found, federation):
    x, y = federation.client("client-2")["train"]
    net = found.personalize(x.numpy(), y.tolist())
    assert net(x).shape == (len(x), 10)
    row = np.array(found.summary["newcomer"])
    parts = []
    for f in np.flatnonzero(row):
        run = found.finalist(int(f))
        one = found.summary["finalists"][f]["who"] == "global"
        parts.append((run.global_model() if one else run.personalize(x.numpy(), y.tolist()))(x).softmax(1) * row[f])
    torch.testing.assert_close(net(x).softmax(1), sum(parts), atol=1e-5, rtol=1e-4)


def test_going_on_trains_only_what_is_new(found, federation, tmp_path):
    same = {"methods": ["ditto", "fedamp"], "seed": 3, "out": tmp_path / "fit", **QUICK}
    pf.fit(federation, module(), trials=6, **same)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "fit" / "candidates").glob("*/run.toml")}
    on = pf.fit(federation, module(), trials=9, resume=True, **same)
    assert all(file.stat().st_mtime_ns == time for file, time in before.items())
    assert len(on.summary["trials"]) == 9
    with pytest.raises(RunError, match=r"exists already|holds"):
        pf.fit(federation, module(), trials=6, **same)
    with pytest.raises(RunError, match="holds another fit: its seed differs"):
        pf.fit(federation, module(), trials=6, resume=True, **{**same, "seed": 4})
    with pytest.raises(RunError, match="holds another fit: its model differs"):
        pf.fit(federation, nn.Sequential(nn.Linear(64, 10)), trials=6, resume=True, **same)


def test_trainings_that_are_not_needed_any_more_are_deleted_and_nothing_else_changes(federation, tmp_path, monkeypatch):
    """Nor is it when a fit goes on, which counts their scores, and trains from the start who goes on all the same."""
    same = {"methods": ["ditto"], "seed": 3, **QUICK}
    monkeypatch.setattr("personafl.fitting.running.FORGET_EVERY", 10**9)
    kept = pf.fit(federation, module(), trials=24, out=tmp_path / "kept", **same)
    monkeypatch.setattr("personafl.fitting.running.FORGET_EVERY", 5)
    begun = pf.fit(federation, module(), trials=14, out=tmp_path / "begun", **same)
    whole = pf.fit(federation, module(), trials=24, out=tmp_path / "whole", **same)
    shutil.copytree(begun.path, tmp_path / "went on")
    went_on = pf.fit(federation, module(), trials=24, out=tmp_path / "went on", resume=True, **same)

    def folders(fit):
        return {file.name for file in (fit.path / "candidates").iterdir()}

    assert len(folders(whole)) < len(folders(kept)) - 5 and folders(whole) < folders(kept)
    gone = [json.loads(line).get("forgotten", []) for line in (whole.path / "trials.jsonl").read_text().splitlines()]
    assert folders(whole) == folders(kept) - {name for names in gone for name in names}
    for fit in (whole, went_on):
        assert fit.weights.tolist() == kept.weights.tolist()
        assert [model["folder"] for model in fit.summary["finalists"]] == [
            m["folder"] for m in kept.summary["finalists"]
        ]
        for client in federation.ids[:2]:
            ours, theirs = fit.personal(client).state_dict(), kept.personal(client).state_dict()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_two_at_once_train_what_one_at_a_time_trains(federation, tmp_path):
    same = {"methods": ["ditto"], "trials": 4, "seed": 3, **QUICK}
    made = [pf.fit(federation, module(), out=tmp_path / str(n), at_once=n, **same) for n in (1, 2)]
    trained = [
        {(t["number"], o["rounds"]): o["score"] for t in fit.summary["trials"] for o in t["outcomes"]} for fit in made
    ]
    common = trained[0].keys() & trained[1].keys()  # who goes on depends on who was done first
    assert len(common) >= 4 and all(trained[0][key] == trained[1][key] for key in common)
    best = max(trained[1].values())
    right = sum(made[1].clients().column("personal_val_correct").to_pylist())
    assert right / int(federation.sizes("val").sum()) >= best - 1e-9 and made[1].summary["refit"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
@pytest.mark.parametrize("key", ["at_once", "trials"])
def test_what_is_no_number_of_candidates_is_refused(federation, wrong, key):
    with pytest.raises(ConfigError, match=rf"{key} = .*must be a whole number of at least 1"):
        pf.fit(federation, module(), **{key: wrong}, **QUICK)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"methods": "ditto"}, "give a list"), ({"methods": 3}, "give a list"),
     ({"engine": "ray"}, "a fit trains in this process")],
)  # fmt: skip
def test_what_python_may_get_wrong_is_one_line(federation, wrong, says):
    with pytest.raises(ConfigError, match=says):
        pf.fit(federation, module(), **{**QUICK, **wrong})


@dataclass(frozen=True, kw_only=True)
class Stopped(Ditto):
    """Ditto, beside which somebody presses Ctrl-C."""

    name = "stopped"

    def send(self, server, ids):
        signal.raise_signal(signal.SIGINT)
        return super().send(server, ids)


def test_ctrl_c_keeps_the_best_so_far_and_a_second_call_goes_on(found, federation, tmp_path):
    same = {"out": tmp_path / "fit", "trials": 5, **QUICK}
    stopped = pf.fit(federation, module(), methods=["fedamp", Stopped()], **same)
    assert stopped.summary["stopped"] and stopped.number["value"] > 0.5
    assert {model["method"] for model in stopped.summary["finalists"]} == {*REFERENCES, "fedamp"}
    assert (
        "Somebody stopped the fit before these were trained to the end, which flatters the fit beside them: "
        "training alone (1 of 6 rounds), one model for all (1 of 6 rounds)" in repr(stopped)
    )
    assert "1 of 5 methods was not tried, as somebody stopped the fit before: stopped." in repr(stopped)
    assert "flatters" not in repr(found) and "not tried" not in repr(found), (
        "whose references had all the time that they wanted"
    )
    on = pf.load_fit(tmp_path / "fit", module=module())
    assert on.personal("client-0") is not None


def test_a_job_from_chosen_toml_trains_the_method_that_was_best(tmp_path):
    config = tmp_path / "job.toml"
    config.write_text(
        'rounds = 4\nsplits = [0.5, 0.25, 0.25]\n[data]\nname = "digits"\n[partition]\nname = "iid"\nclients = 4\n'
        '[model]\nname = "mlp"\nhidden = [8]\n[local]\nlr = 0.3\nsteps = 5\n[engine]\nname = "stacked"\nthreads = 1\n'
    )
    from typer.testing import CliRunner

    from personafl.cli import app

    words = ["fit", str(config), "--out", str(tmp_path / "fit"), "-a", "ditto", "--trials", "4", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["measure"] == "accuracy" and 0 <= told["test"]["value"] <= 1
    chosen = read_config(tmp_path / "fit" / "chosen.toml")
    summary = json.loads((tmp_path / "fit" / "fit.json").read_text())
    best = max(summary["finalists"], key=lambda model: model["score"])
    assert chosen.algorithm.name == best["method"] and chosen.schedule.rounds == best["rounds"]
    searched = Run(tmp_path / "fit" / "candidates" / best["searched"])
    assert chosen.federation().fingerprint == searched.manifest["resolved"]["fingerprint"]


def test_the_report_of_a_fit_says_who_gets_what(found):
    data = report_data([found.path])
    assert data["methods"][0]["name"] == "fit" and len(data["methods"]) >= 4
    told = data["fit"]
    assert np.allclose(np.sum(told["weights"], 1), 1, atol=1e-2)
    assert sum(way["taken"] for way in told["ways"]) == 1
    assert sum(model["mostly"] for model in told["finalists"]) == len(found.table())
    assert "Which model for whom" in page(data)


def test_a_damaged_fit_is_refused_in_one_line(found, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(found.path, copy)
    told = json.loads((copy / "fit.json").read_text())
    del told["weights"]
    (copy / "fit.json").write_text(json.dumps(told))
    with pytest.raises(RunError, match="lacks weights"):
        pf.load_fit(copy, module=module())
    with pytest.raises(RunError, match="lacks weights"):
        report_data([copy])


# --- unusual federations ----------------------------------------------------------------------------------------------


def test_a_federation_of_one_client(federation):
    x, y = federation.client("client-0")["train"]
    alone = pf.Federation.from_clients({"me": {"train": (x[:30], y[:30]), "val": (x[30:40], y[30:40])}})
    made = pf.fit(alone, nn.Linear(64, alone.classes), methods=["fedavg"], trials=3, **QUICK)
    assert made.personal("me")(x[:2]).shape == (2, alone.classes)
    assert made.number["value"] is None and "there is no honest number" in repr(made)


def test_where_nobody_has_validation_data_a_share_of_the_training_data_is_taken(federation, caplog):
    without = {
        c: {"train": federation.client(c)["train"], "test": federation.client(c)["test"]} for c in federation.ids
    }
    made = pf.fit(pf.Federation.from_clients(without), module(), methods=["fedavg"], trials=3, **QUICK)
    assert "nobody has validation data" in caplog.text
    assert min(made.table().column("n_val").to_pylist()) > 0
    assert made.table().column("n_test").to_pylist() == federation.sizes("test").tolist()


def test_where_no_sample_can_be_had_for_validation_it_says_so(federation):
    x, y = federation.client("client-0")["train"]
    one = {"train": (x[:1], y[:1]), "test": (x[1:3], y[1:3])}
    with pytest.raises(DataError, match="nobody has validation data nor two training samples"):
        pf.fit(pf.Federation.from_clients({"ann": one, "bob": one}), module(), **QUICK)


def test_a_measure_of_which_less_is_better_and_no_model_given():
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(5):
        x = rng.normal(size=(60, 3)).astype(np.float32)
        y = (x @ [1.0, -1.0, 0.5] + k).astype(np.float32)
        clients[f"c{k}"] = {s: (x[a:b], y[a:b]) for s, a, b in (("train", 0, 30), ("val", 30, 45), ("test", 45, 60))}
    made = pf.fit(
        pf.Federation.from_clients(clients), methods=["fedavg-ft"], trials=5,
        **{**QUICK, "local": pf.Local(lr=0.05, steps=20, batch_size=10), "engine": "loop"},
    )  # fmt: skip
    assert made.primary.better < 0
    scores = {model["label"]: -model["score"] for model in made.summary["finalists"]}
    assert scores["alone"] < scores["one model"], "each has its own offset, which one model cannot have"
    assert made.number["value"] < made.number["global"]["value"]
    assert made.number["global"]["better"] >= 4
    rows = made.table().to_pylist()
    assert all(row["gain_over_global"] == pytest.approx(row["global_rmse"] - row["rmse"]) for row in rows)


def test_a_measure_without_a_value_on_validation_data_gives_way_to_the_loss_and_it_says_so(federation):
    """AUC where nobody's validation samples are of two classes."""
    clients = {}
    for k in range(3):
        x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(k)), torch.arange(40) % 2
        one = y == 1
        clients[f"c{k}"] = {"train": (x[:20], y[:20]), "val": (x[20:][one[20:]], y[20:][one[20:]]), "test": (x, y)}
    auc = pf.tasks.Classification(metrics=("auc",))
    made = pf.fit(pf.Federation.from_clients(clients), nn.Linear(3, 2), task=auc, methods=[], trials=3, **QUICK)
    assert "No client's validation data gives AUC a value: the choice was by the loss." in made.summary["notes"]
    assert "by the loss" not in repr(pf.fit(federation, module(), methods=[], trials=3, **QUICK))


def test_a_budget_too_small_for_one_candidate_is_one_line(federation, tmp_path):
    with pytest.raises(ConfigError, match=r"budget = 0\.0s is too little for one candidate"):
        pf.fit(federation, module(), budget=0.001, out=tmp_path / "fit", **QUICK)
    with pytest.raises(RunError, match="already holds a fit: go on with resume=True"):
        pf.fit(federation, module(), budget="1h", out=tmp_path / "fit", **QUICK)
    made = pf.fit(federation, module(), budget="1h", trials=3, resume=True, out=tmp_path / "fit", **QUICK)
    assert len(made.summary["trials"]) == 3


@pytest.mark.parametrize("budget", ["soon", "-3s", 0, "10 parsecs", None])
def test_a_budget_that_is_no_time_is_refused(federation, budget):
    with pytest.raises(ConfigError, match="must be a time above 0"):
        pf.fit(federation, module(), budget=budget, **QUICK)


def test_methods_that_choose_on_validation_data_themselves_are_refused(federation):
    with pytest.raises(ConfigError, match="which chooses on validation data itself"):
        pf.fit(federation, module(), methods=["persfl"], **QUICK)
    with pytest.raises(ConfigError, match="trials = 0"):
        pf.fit(federation, module(), trials=0, **QUICK)
