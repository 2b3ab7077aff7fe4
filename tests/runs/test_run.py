"""Facts about a finished run: its models do what its tables say, and it can be taken up again from disk."""

import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

import personafl as pf
from personafl.config import parse
from personafl.errors import DataError, RunError
from personafl.jobs import train_config
from personafl.settings import Schedule

QUIET = {"progress": False, "engine": "stacked", "threads": 1, "eval_every": 2}


class Own(nn.Module):
    """A model that personafl does not know: two branches, added."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(64, 10)
        self.deep = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))

    def forward(self, x):
        return self.wide(x) + self.deep(x)


@pytest.fixture(scope="module")
def federation():
    return pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=6, alpha=0.4), seed=2)


@pytest.fixture(scope="module")
def run(federation, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run") / "own"
    local = pf.Local(lr=0.1, steps=10)
    return pf.train(federation, Own(), pf.FedAvg(), rounds=5, local=local, activity=0.7, out=folder, **QUIET)


def hits(net, data):
    x, y = data
    with torch.no_grad():
        return int((net(x).argmax(1) == y).sum())


# --- tables


def test_clients_is_a_row_for_each_client(run, federation):
    table = run.clients()
    assert table.column("client").to_pylist() == list(federation.ids)
    assert set(table.column("round").to_pylist()) == {5}
    assert table.column("n_test").to_pylist() == federation.sizes("test").tolist()
    assert set(table.column_names) >= {
        "client", "group", "round", "n_train", "n_val", "n_test", "personal_correct", "personal_loss",
        "global_correct", "global_loss", "steps", "activations", "failures",
    }  # fmt: skip
    accuracy = np.array(table.column("personal_correct")) / np.array(table.column("n_test"))
    assert np.allclose(table.column("personal_accuracy"), accuracy)
    assert sum(table.column("activations").to_pylist()) == 5 * 4


def test_every_evaluation_is_kept(run):
    assert set(run.folder.clients().column("round").to_pylist()) == {2, 4, 5}
    assert set(run.clients(round=2).column("round").to_pylist()) == {2}
    with pytest.raises(RunError, match="no evaluation of round 3; there are 2, 4, 5"):
        run.clients(round=3)


def test_rounds_are_those_of_the_file(run):
    records = run.rounds()
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5]
    assert ["personal_accuracy" in record for record in records] == [False, True, False, True, True]
    assert records == [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    table = run.clients()
    pooled = sum(table.column("personal_correct").to_pylist()) / sum(table.column("n_test").to_pylist())
    assert records[-1]["personal_accuracy"] == pytest.approx(pooled) == run.score["personal_accuracy"]
    up = 4 * 5 * sum(p.numel() for p in Own().parameters()) * 4
    assert records[-1]["bytes_up"] == up == records[-1]["bytes_down"]


# --- models


def test_personal_models_get_right_what_the_table_says(run, federation):
    for row in run.clients().to_pylist():
        net = run.personal(row["client"])
        assert type(net) is Own and not net.training
        assert hits(net, federation.client(row["client"])["test"]) == row["personal_correct"]


def test_the_global_model_gets_right_what_the_table_says(run, federation):
    net = run.global_model()
    for row in run.clients().to_pylist():
        x, y = federation.client(row["client"])["test"]
        assert hits(net, (x, y)) == row["global_correct"]
        if len(y):
            with torch.no_grad():
                loss = nn.functional.cross_entropy(net(x), y).item()
            assert row["global_loss"] == pytest.approx(loss, rel=1e-5)


def test_an_unknown_client_is_an_error(run):
    with pytest.raises(DataError, match="has no client 'client-66'; the first are client-0, client-1, client-2"):
        run.personal("client-66")


def test_an_algorithm_without_a_global_model_says_so(federation):
    run = pf.train(federation, Own(), pf.Separate(), rounds=2, **QUIET)
    assert run.clients().column("global_correct").null_count == 6
    assert "global_accuracy" not in run.score
    with pytest.raises(RunError, match="separate has no global model"):
        run.global_model()


def test_a_newcomer_gets_a_model_and_the_run_stays_as_it_is(run):
    x, y = pf.data.build(pf.data.Digits(), pf.partition.IID(clients=20), seed=9).client("client-4")["train"]
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    net = run.personalize(x, y)
    assert type(net) is Own and hits(net, (x, y)) > hits(run.global_model(), (x, y))
    again = run.personalize(x.numpy(), y.tolist())
    for first, second in zip(net.parameters(), again.parameters(), strict=True):
        assert first.equal(second)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_newcomer_with_data_of_another_shape_is_refused(run):
    with pytest.raises(DataError, match=r"samples have shape \(3,\), the model wants \(64,\)"):
        run.personalize(np.ones((4, 3)), [0, 1, 2, 3])
    with pytest.raises(DataError, match=r"labels outside 0\.\.9 in 1 client: newcomer"):
        run.personalize(np.ones((2, 64)), [0, 11])


# --- from disk


def test_a_run_with_a_module_of_its_own_needs_it_again(run, federation):
    with pytest.raises(
        RunError,
        match=r"trained a Own: give it, load_run\(.*, module=…\) in Python, --module tests.runs.test_run:Own on",
    ):
        pf.load(run.path).personal("client-0")
    loaded = pf.load(run.path, module=Own())
    x, _ = federation.client("client-0")["train"]
    assert loaded.personal("client-0")(x).equal(run.personal("client-0")(x))
    assert loaded.clients().equals(run.clients()) and loaded.score == run.score


def test_newcomers_of_a_loaded_run_start_where_the_run_began(federation, tmp_path):
    """Not from the weights that the module given to `load` happens to have."""
    run = pf.train(federation, Own(), pf.Separate(), rounds=1, out=tmp_path / "run", **QUIET)
    x, y = federation.client("client-1")["train"]
    loaded = pf.load(tmp_path / "run", module=Own())
    assert loaded.personalize(x, y)(x).equal(run.personalize(x, y)(x))


def test_a_config_run_is_loaded_without_help(tmp_path):
    config = parse({"rounds": 2, "partition": {"name": "iid", "clients": 4}, "local": {"steps": 3}, "engine": "loop"})
    train_config(config, tmp_path / "run")
    run, federation = pf.load(tmp_path / "run"), config.federation()
    for row in run.clients().to_pylist():
        data = federation.client(row["client"])["test"]
        assert hits(run.personal(row["client"]), data) == row["personal_correct"]
        assert hits(run.global_model(), data) == row["global_correct"]
    assert run.algorithm == config.algorithm and run.complete and run.seconds > 0


def test_what_is_not_a_run_is_not_loaded(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.toml"):
        pf.load(tmp_path)


def test_an_unfinished_run_says_so(federation, tmp_path):
    class Stop(pf.Listener):
        def round_ended(self, record, seconds):
            if record["round"] == 3:
                raise RuntimeError("enough")

    options = {**QUIET, "out": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="enough"):
        pf.train(federation, Own(), rounds=4, listeners=[Stop()], **options)
    run = pf.load(tmp_path / "run", module=Own())
    assert not run.complete and set(run.clients().column("round").to_pylist()) == {2}
    with pytest.raises(RunError, match=r"not finished; continue it with resume=True \(--resume"):
        run.personal("client-0")


def test_a_folder_without_out_goes_with_the_run(federation):
    run = pf.train(federation, Own(), rounds=1, **QUIET)
    path = run.path
    assert path.exists()
    del run
    assert not path.exists()


# --- resuming from Python


def test_resuming_keeps_the_weights_that_the_run_began_with(federation, tmp_path):
    """A process that resumes makes its module anew; clients that were never active must not notice."""
    options = {**QUIET, "activity": 0.2, "checkpoint_every": 1}
    torch.manual_seed(1)
    whole = pf.train(federation, Own(), pf.Separate(), rounds=4, out=tmp_path / "whole", **options)
    torch.manual_seed(1)
    pf.train(federation, Own(), pf.Separate(), rounds=2, out=tmp_path / "run", **options)
    resumed = pf.train(federation, Own(), pf.Separate(), rounds=4, out=tmp_path / "run", resume=True, **options)
    assert 0 in whole.clients().column("activations").to_pylist()
    assert resumed.clients().equals(whole.clients())


def test_another_model_or_other_data_are_not_resumed_with(federation, tmp_path):
    options = {**QUIET, "out": tmp_path / "run", "rounds": 2}
    pf.train(federation, nn.Linear(64, 10), **options)
    with pytest.raises(RunError, match="the model is not the same"):
        pf.train(federation, nn.Linear(64, 10, bias=False), resume=True, **options)
    other = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=6, alpha=0.4), seed=3)
    with pytest.raises(RunError, match="the data is not the same"):
        pf.train(other, nn.Linear(64, 10), resume=True, **options)
    with pytest.raises(RunError, match="resume needs the run folder"):
        pf.train(federation, nn.Linear(64, 10), resume=True)


# --- unlike classification, unlike everybody


def test_regression_has_errors_instead_of_hits(tmp_path):
    config = parse(
        {"data": {"name": "gaussian", "clients": 5}, "rounds": 30, "engine": "loop", "local": {"lr": 0.2, "steps": 5}}
    )
    train_config(config, tmp_path / "run")
    run, federation = pf.load(tmp_path / "run"), config.federation()
    table = run.clients()
    assert not [name for name in table.column_names if "correct" in name or "accuracy" in name]
    assert set(run.score) >= {"personal_loss", "global_loss"} and not [k for k in run.score if "accuracy" in k]
    for row in table.to_pylist():
        x, y = federation.client(row["client"])["test"]
        with torch.no_grad():
            error = run.personal(row["client"])(x).flatten() - y.flatten()
        assert row["personal_loss"] == pytest.approx(error.square().mean().item(), rel=1e-4)
        assert row["personal_mae"] == pytest.approx(error.abs().mean().item(), rel=1e-4)
        assert row["personal_rmse"] == pytest.approx(error.square().mean().sqrt().item(), rel=1e-4)
    assert run.global_model().weight.item() == pytest.approx(1.6, abs=0.2)
    newcomer = run.personalize(torch.ones(50, 1), torch.full((50, 1), 1.7))
    assert newcomer.weight.item() == pytest.approx(1.7, abs=0.1)


def test_a_loss_of_ones_own(federation, tmp_path):
    def focal(outputs, y):
        likely = outputs.log_softmax(-1).gather(-1, y[..., None])[..., 0]
        return -((1 - likely.exp()) ** 2) * likely

    run = pf.train(federation, Own(), rounds=2, loss=focal, out=tmp_path / "run", **QUIET)
    loaded = pf.load(tmp_path / "run", module=Own())
    x, y = federation.client("client-0")["train"]
    assert loaded.personal("client-0")(x).equal(run.personal("client-0")(x))
    assert type(run.personalize(x, y)) is Own
    with pytest.raises(RunError, match="a loss of its own"):
        loaded.personalize(x, y)


def made(sizes, huge=()):
    """A federation of two features: the label is which one is larger. Huge clients see it the other way round."""
    draw = np.random.default_rng(0)
    data = {}
    for name, parts in sizes.items():
        data[name] = {}
        for split, count in parts.items():
            x = draw.normal(size=(count, 2))
            y = (x[:, 0] > x[:, 1]).astype(int)
            data[name][split] = (1e38 * x, 1 - y) if name in huge else (x, y)
    return pf.Federation.from_clients(data, classes=2)


def test_clients_without_test_data_have_no_score_and_count_for_nothing():
    federation = made({"ann": {"train": 20, "test": 10}, "bob": {"train": 20}, "eve": {"train": 20, "test": 30}})
    run = pf.train(federation, nn.Linear(2, 2), rounds=3, **QUIET)
    ann, bob, eve = run.clients().to_pylist()
    for column in ("personal_correct", "personal_loss", "personal_accuracy", "global_correct", "global_loss"):
        assert bob[column] is None and ann[column] is not None and eve[column] is not None
    assert bob["n_test"] == 0 and bob["n_train"] == 20
    assert run.score["personal_accuracy"] == pytest.approx((ann["personal_correct"] + eve["personal_correct"]) / 40)
    assert run.score["personal_loss"] == pytest.approx((ann["personal_loss"] * 10 + eve["personal_loss"] * 30) / 40)
    assert not [name for name in run.score if "_val_" in name], "nobody has validation data"


def test_a_federation_without_any_test_data_has_no_score():
    run = pf.train(made({"ann": {"train": 20}, "bob": {"train": 20}}), nn.Linear(2, 2), rounds=2, **QUIET)
    assert run.clients().column("personal_loss").null_count == 2
    assert run.score == {}


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("algorithm", [pf.FedAvg(), pf.FedProxFT()])
def test_a_client_that_diverges_is_left_out_counted_and_named(engine, algorithm, caplog):
    everybody = {name: {"train": 20, "test": 10} for name in ("ann", "bob", "eve", "zoe")}
    federation = made(everybody, huge=["bob"])
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, "personafl"):
        run = pf.train(federation, nn.Linear(2, 2), algorithm, rounds=3, **{**QUIET, "engine": engine})
    assert run.clients().column("failures").to_pylist() == [0, 3, 0, 0]
    assert run.clients().column("activations").to_pylist() == [3, 3, 3, 3]
    assert [record["failed"] for record in run.rounds()] == [["bob"]] * 3
    assert "round 2: 1 of 4 updates are not finite and left out: bob" in caplog.messages
    assert all(parameter.isfinite().all() for parameter in run.global_model().parameters())
    for name in ("ann", "eve", "zoe"):
        assert hits(run.personal(name), federation.client(name)["test"]) >= 7


# --- large federations: a sample is evaluated, and models that many share are written once


def many_clients(count=60):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count * 10, 4)).astype(np.float32), rng.integers(0, 3, count * 10)
    return pf.Federation.from_arrays(x, y, clients=np.repeat(np.arange(count), 10), classes=3)


def train_some(algorithm, **options):
    torch.manual_seed(0)
    options = {**QUIET, "activity": 0.1, "rounds": 4, **options}
    return pf.train(many_clients(), nn.Linear(4, 3), algorithm, local=pf.Local(lr=0.1, steps=3), **options)


def test_a_sample_of_clients_is_evaluated_the_same_at_every_evaluation():
    whole, sampled = (train_some(pf.Ditto(), eval_clients=count) for count in (0, 12))
    for round in (2, 4):
        names = sampled.clients(round).column("client").to_pylist()
        assert len(set(names)) == 12 and names == sampled.clients().column("client").to_pylist()
        expected = [row for row in whole.clients(round).to_pylist() if row["client"] in names]
        for one, two in zip(sampled.clients(round).to_pylist(), expected, strict=True):
            assert all(value == two[name] or value == pytest.approx(two[name], rel=1e-6) for name, value in one.items())
    said = [row for row in whole.predictions().to_pylist() if row["client"] in names]
    for one, two in zip(sampled.predictions().to_pylist(), said, strict=True):
        assert all(value == two[name] or value == pytest.approx(two[name], rel=1e-5) for name, value in one.items())
    saved = [(run.path / "models" / "personal.safetensors").read_bytes() for run in (whole, sampled)]
    assert saved[0] == saved[1]


def test_the_sample_follows_from_the_seed():
    schedule = Schedule(eval_clients=5)
    one, again, two = (schedule.evaluated(seed, 100).tolist() for seed in (1, 1, 2))
    assert one == again != two
    assert schedule.evaluated(1, 5).tolist() == [0, 1, 2, 3, 4]
    assert schedule.evaluated(1, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("algorithm", [pf.FedAvg(), pf.SelfFL(), pf.FedAMP(), pf.FedPer(), pf.APFL(), pf.Separate()])
def test_clients_that_were_never_active_share_a_model_that_is_written_once(algorithm):
    whole, frugal = train_some(algorithm), train_some(algorithm, models_mb=0)
    active = [row["client"] for row in frugal.clients().to_pylist() if row["activations"]]
    others = json.loads((frugal.path / "models" / "others.json").read_text())
    assert 6 < len(active) < 25 and sorted(active + others) == sorted(many_clients().ids)
    assert not (whole.path / "models" / "others.json").exists()
    for client in (*active[:3], *others[:3]):
        for one, two in zip(frugal.personal(client).parameters(), whole.personal(client).parameters(), strict=True):
            assert torch.equal(one, two)
    with pytest.raises(DataError, match="has no client 'nobody'"):
        frugal.personal("nobody")


def test_a_model_that_would_take_a_clients_data_is_not_made_up():
    run = train_some(pf.FedAvgFT(), models_mb=0, eval_clients=10)
    other = json.loads((run.path / "models" / "others.json").read_text())[0]
    with pytest.raises(RunError, match=f"keeps no model of client '{other}', which was never active: make one"):
        run.personal(other)
    whole = train_some(pf.FedAvgFT())
    active = next(row["client"] for row in whole.clients().to_pylist() if row["activations"])
    for one, two in zip(run.personal(active).parameters(), whole.personal(active).parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_a_longer_run_that_writes_all_models_leaves_no_others(tmp_path):
    for rounds, limit in ((2, 0), (3, 1024)):
        run = train_some(pf.FedAvg(), rounds=rounds, models_mb=limit, out=tmp_path / "run", resume=True)
        assert (run.path / "models" / "others.json").exists() == (limit == 0)
        assert len([run.personal(client) for client in many_clients().ids[:5]]) == 5
