"""What one site can do to the others: weigh too much, send what breaks an aggregate, lie about its measures."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from personafl.algorithms import ALGORITHMS, Mean, Uploads
from personafl.backends.flower import app as app_module
from personafl.backends.flower import nodes as nodes_module
from personafl.backends.flower.screening import check_measures
from personafl.errors import DataError
from personafl.kernels.task import Task
from personafl.storage.folder import RunFolder
from personafl.training.evaluation import ClientIndex
from tests.archetypes import FOR_ANY_MODEL
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import as_table, federation, flower, same, same_clients, server_state
from tests.backends.flower.test_faults import deaf, is_training, node_of

EVIL = "site-4"
KINDS = ("fedavg", "scaffold", "fedper", "fedamp", "selffl")
"""Algorithms whose answers or servers are unlike each other."""


@pytest.fixture(autouse=True)
def ask_again_soon(monkeypatch):
    monkeypatch.setattr(nodes_module, "ANSWER", 0.5)
    # The log goes to pytest and not to Flower's handlers.
    monkeypatch.setattr(app_module, "_speak", lambda: None)
    monkeypatch.setattr(app_module.log, "handlers", [])
    monkeypatch.setattr(app_module.log, "propagate", True)
    app_module.log.setLevel(logging.INFO)


def grid_with(tmp_path, says, client=EVIL):
    """Three sites, one of which changes what it says."""
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    node_of(grid, client)[1].says = says
    return grid


def attacked(tmp_path, says, algorithm, **more):
    """A run of three sites, one of which changes what it says; and what it would be without what it says in round 2."""
    more = {"rounds": 2, "model": {"name": "mlp", "hidden": [3]}, **more}
    run = flower(tmp_path / "flower", grid_with(tmp_path, says), algorithm, round_timeout=30.0, **more)
    return run, flower(tmp_path / "other", grid_with(tmp_path / "without", deaf(2)), algorithm, **more)


def claims(**values):
    """A site that says something else of itself."""

    def says(message: Message) -> Message:
        if message.metadata.message_type == "query":
            message.content = RecordDict({"site_info": ConfigRecord({**message.content["site_info"], **values})})
        return message

    return says


def sends(change, rounds=(1, 2, 3)):
    """A site that changes the arrays of its updates."""

    def says(message: Message) -> Message:
        if any(is_training(message, round) for round in rounds):
            arrays = {name: array.numpy() for name, array in message.content.array_records["up"].items()}
            new = ArrayRecord({name: Array(change(name, array)) for name, array in arrays.items()})
            message.content = RecordDict({"answer": message.content["answer"], "up": new})
        return message

    return says


def reports(**values):
    """A site whose evaluations say something else."""

    def says(message: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            columns = dict(message.content.array_records["columns"].items())
            columns |= {name: Array(np.array([value])) for name, value in values.items()}
            message.content = RecordDict({"answer": message.content["answer"], "columns": ArrayRecord(columns)})
        return message

    return says


def theta(run):
    return server_state(run)["server.theta"]


def listening(grid, round=1):
    """What the sites send up in a round, by name."""
    heard = {}
    for node in grid.nodes.values():

        def says(message, node=node, before=node.says):
            message = before(message)
            if message is not None and is_training(message, round):
                heard[node.site.parent.name] = message.content.array_records["up"]["theta"].numpy()
            return message

        node.says = says
    return heard


# --- weights -----------------------------------------------------------------------------------------------------


def test_a_site_that_claims_any_number_of_samples_has_half_of_the_weight_at_most(tmp_path):
    grid = grid_with(tmp_path, claims(train=2**30))
    sent = listening(grid)
    run = flower(tmp_path / "flower", grid, "fedavg", rounds=1)
    mean = torch.tensordot(
        torch.tensor([6 / 36, 0.5, 12 / 36]), torch.stack([torch.tensor(sent[c]) for c in federation().ids]), dims=1
    )
    assert torch.allclose(theta(run), mean, rtol=0, atol=1e-6)


def test_more_samples_than_can_be_are_refused_by_name(tmp_path, caplog):
    grid = grid_with(tmp_path, claims(train=2**39))
    with caplog.at_level(logging.WARNING):
        run = flower(tmp_path / "flower", grid, "fedavg", clients=list(federation().ids), patience=0.3, rounds=1)
    assert "site site-4 says that it has 549755813888 train samples" in caplog.text
    assert run.rounds()[0]["dropped"] == {EVIL: "not there"}


def test_an_operator_may_say_how_many_samples_there_can_be(tmp_path, caplog):
    grid = grid_with(tmp_path, claims(val=21))
    run = flower(tmp_path / "flower", grid, "fedavg", clients=list(federation().ids), patience=0.3, most_samples=20)
    assert "site site-4 says that it has 21 val samples; federation.most_samples is 20" in caplog.text
    assert all(record["dropped"] == {EVIL: "not there"} for record in run.rounds())


def test_a_site_counts_with_what_it_first_declared(tmp_path, caplog):
    """It comes back as another node and says that it has more."""
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    number, node = node_of(grid, EVIL)

    def hears(message: Message) -> Message:
        if is_training(message, 1):
            more = claims(train=2**30)
            grid.nodes[5] = replace(grid.nodes.pop(number), hears=lambda message: message, says=more)
        return message

    node.hears = hears
    run = flower(tmp_path / "flower", grid, "fedavg", max_weight=1.0)
    honest = MemoryGrid(sites_of(tmp_path / "honest", federation()))
    assert same(server_state(run), server_state(flower(tmp_path / "other", honest, "fedavg", max_weight=1.0)))
    assert as_table(run).column("n_train").to_pylist() == federation().sizes("train").tolist()
    assert "site-4 says that it has 1073741824 train samples, at first it said 9: it counts with these" in caplog.text


def test_measures_of_samples_that_were_not_declared_are_left_out(tmp_path, caplog):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    flower(tmp_path / "flower", grid, "fedavg", rounds=1)
    node_of(grid, EVIL)[1].says = claims(test=2**30)
    run = flower(tmp_path / "flower", MemoryGrid(grid.nodes), "fedavg", rounds=2)
    assert "round 2: site-4 was not evaluated (it has more test samples than when it joined)" in caplog.text
    assert as_table(run).column("n_test").to_pylist()[-3:] == [4, 0, 4]


@pytest.mark.parametrize("answered", [True, False])
def test_what_a_site_first_declared_is_kept_with_the_run(tmp_path, answered):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    if not answered:
        node_of(grid, EVIL)[1].says = deaf(1)
    flower(tmp_path / "flower", grid, "fedavg", rounds=1)
    node_of(grid, EVIL)[1].says = claims(train=2**30)
    run = flower(tmp_path / "flower", MemoryGrid(grid.nodes), "fedavg", rounds=3)
    assert as_table(run).column("n_train").to_pylist()[-3:] == federation().sizes("train").tolist()


@pytest.mark.parametrize(
    ("samples", "most", "expected"),
    [
        ([6, 9, 12], 0.5, [6, 9, 12]),  # nobody is above
        ([6, 9, 1000], 0.5, [6, 9, 15]),
        ([10, 10**6, 10**12], 0.5, [10, 10**6, 10**6 + 10]),
        ([1, 1, 1, 1, 500, 900], 0.3, [1, 1, 1, 1, 3, 3]),  # two are above
        ([3, 800], 0.5, [3, 3]),
        ([3, 800], 0.4, [1, 1]),  # two cannot both be below a half
        ([7, 1, 1], 0.25, [1, 1, 1]),
        ([800], 0.5, [1]),
        ([3, 800], 1.0, [3, 800]),
    ],
)
def test_no_share_is_above_the_limit(samples, most, expected):
    values = torch.eye(len(samples), dtype=torch.float64)
    uplink = {"theta": Mean(weights="samples")}
    limited = Uploads(torch.arange(len(samples)), torch.tensor(samples), {"theta": values}, uplink, most=most)
    wanted = torch.tensor(expected, dtype=torch.float64) / sum(expected)
    got = limited.mean("theta")
    assert torch.allclose(got, wanted, rtol=1e-12)
    assert got.max() <= max(most, 1 / len(samples)) + 1e-15
    if samples == expected:  # bit for bit what it is without a limit
        free = Uploads(torch.arange(len(samples)), torch.tensor(samples), {"theta": values}, uplink)
        assert got.equal(free.mean("theta"))


@pytest.mark.parametrize("clusters", ["none", "uncertainty", "group"])
def test_a_claim_of_perfect_precision_does_not_take_all_weight(clusters):
    """Self-FL weighs by 1/(σ0² + σ_m²)."""
    algorithm = ALGORITHMS["selffl"](clusters=clusters)
    if clusters == "group":
        object.__setattr__(algorithm, "_groups", (0, 1, 1, 1))
    server = algorithm.new_server(torch.zeros(2), 4)
    models = torch.tensor([[-3.0, -3.0], [1.0, 1.0], [1.0, 1.1], [1.1, 1.0]])
    up = {"theta": models, "sigma2": torch.tensor([0.0, 1e6, 1.1e6, 0.9e6])}
    new = algorithm.aggregate(dict(server), Uploads(torch.arange(4), torch.ones(4), up, algorithm.uplink, most=0.5))
    assert new["theta"].min() > -1.01
    # Nor do the others take it for more precise than half of everything when they decide how many steps to take.
    precision = algorithm._precision(new, new["sigma2"])
    assert precision[0] <= precision[1:].sum() * (1 + 1e-5)
    free = algorithm.aggregate(dict(server), Uploads(torch.arange(4), torch.ones(4), up, algorithm.uplink))
    assert free["theta"].max() < -2.9


# --- updates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [*KINDS[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS[2:])])
def test_an_update_near_the_end_of_float32_is_left_out_and_the_run_goes_on(tmp_path, algorithm, caplog):
    says = sends(lambda name, array: np.full_like(array, 3e38), rounds=(2,))
    run, without = attacked(tmp_path, says, algorithm, rounds=3)
    assert len(run.rounds()) == 3 and list(run.rounds()[1]["dropped"]) == [EVIL]
    assert "longer than any model" in run.rounds()[1]["dropped"][EVIL]
    assert "site-4 (its update" in caplog.text
    assert same(server_state(run), server_state(without)) and same_clients(run, without)


@pytest.mark.parametrize("algorithm", FOR_ANY_MODEL)
def test_updates_as_long_as_they_may_be_have_a_finite_aggregate(algorithm):
    """Also where several servers' rules square them and add them up."""
    from personafl.algorithms.base import JobInfo
    from personafl.algorithms.extras import trained_task
    from personafl.backends.flower.job import upload_of
    from personafl.backends.flower.screening import LONGEST
    from personafl.kernels.task import Task
    from personafl.models import MODELS, initialize
    from personafl.settings import Local
    from personafl.tasks.classes import cross_entropy

    task = trained_task(ALGORITHMS[algorithm](), Task(initialize(MODELS["mclr"](), (4,), 2, 3)))
    local, count = Local(), 64
    layers = tuple(zip(task.names, task.sizes, strict=True))
    made = ALGORITHMS[algorithm]().prepare(JobInfo(layers, count, local, True, objective=cross_entropy))
    server, ids = made.new_server(task.theta0, count), torch.arange(count)
    for _ in range(2):
        sent = made.send(server, ids)
        one = upload_of(made, local, made.new_client(task.theta0, sent.one(0)), sent.one(0))
        signs = torch.where(ids % 2 == 0, 1.0, -1.0)
        up = {
            n: signs.reshape(-1, *[1] * v.dim())
            * torch.full_like(v, LONGEST / max(v.numel(), 1) ** 0.5).expand(count, *v.shape)
            for n, v in one.items()
        }
        server = made.aggregate(server, Uploads(ids, torch.ones(count), up, made.uplink, most=0.5))
        assert all(bool(torch.isfinite(v).all()) for v in server.values() if v.is_floating_point())
        assert all(bool(torch.isfinite(v).all()) for v in made.send(server, ids).each.values())


@pytest.mark.parametrize("algorithm", KINDS)
def test_an_update_far_beyond_the_others_is_left_out(tmp_path, algorithm):
    def change(name: str, array: np.ndarray) -> np.ndarray:
        return array * 1e9 if array.ndim else array

    run, without = attacked(tmp_path, sends(change, rounds=(2,)), algorithm)
    assert list(run.rounds()[1]["dropped"]) == [EVIL]
    assert "times as long as the median" in run.rounds()[1]["dropped"][EVIL]
    assert same(server_state(run), server_state(without)) and same_clients(run, without)


def test_how_far_is_too_far_is_a_setting(tmp_path):
    def change(name: str, array: np.ndarray) -> np.ndarray:
        return array + 1

    run = flower(tmp_path / "flower", grid_with(tmp_path, sends(change)), "fedavg", rounds=1)
    assert "dropped" not in run.rounds()[0]
    again = grid_with(tmp_path / "again", sends(change))
    strict = flower(tmp_path / "strict", again, "fedavg", rounds=1, max_norm_factor=3.0)
    assert list(strict.rounds()[0]["dropped"]) == [EVIL]
    assert "federation.max_norm_factor" in strict.rounds()[0]["dropped"][EVIL]


def test_with_two_answers_nobody_is_the_measure(tmp_path):
    grid = grid_with(tmp_path, sends(lambda name, array: array * 1e9))
    node_of(grid, "site-2")[1].says = deaf(1)
    assert list(flower(tmp_path / "flower", grid, "fedavg", rounds=1).rounds()[0]["dropped"]) == ["site-2"]


# --- measures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"personal_correct": 5.0}, "personal_correct is 5, expected 0 to 4"),
        ({"global_val_correct": -1.0}, "global_val_correct is -1, expected 0 to 4"),
        ({"personal_correct": np.nan}, "personal_correct is nan, expected 0 to 4"),
        ({"personal_loss": np.nan}, "personal_loss is nan"),
        ({"personal_loss": np.inf}, "personal_loss is inf"),
        ({"global_loss": -0.5}, "global_loss is -0.5"),
        ({"personal_val_loss": 1e300}, "personal_val_loss is 1e+300"),
        ({"gain": np.float32(np.inf)}, "gain is inf"),
    ],
)
def test_measures_that_cannot_be_are_left_out_by_name(tmp_path, wrong, reason, caplog):
    run = flower(tmp_path / "flower", grid_with(tmp_path, reports(**wrong)), "selffl", rounds=1, round_timeout=30.0)
    assert f"round 1: site-4 was not evaluated ({reason}" in caplog.text
    row = as_table(run).to_pylist()[1]
    assert (row["client"], row["n_test"], row["personal_correct"], row["personal_loss"]) == (EVIL, 0, None, None)
    others = as_table(run).column("personal_loss").to_pylist()
    assert run.score["personal_loss"] == pytest.approx((others[0] * 4 + others[2] * 4) / 8)


@pytest.mark.parametrize(
    ("held", "right", "reason"),
    [(5.0, 1.0, "n_held is 5, expected 0 to 4"), (2.0, 3.0, "personal_held_correct is 3, expected 0 to 2")],
)
def test_measures_on_held_back_samples_are_bounded_by_them(held, right, reason):
    sizes = {split: np.array([4]) for split in ("train", "val", "test")}
    columns = {"n_held": torch.tensor([held]), "personal_held_correct": torch.tensor([right])}
    with pytest.raises(DataError, match=reason):
        check_measures(columns, ClientIndex(("a",), None, sizes, True), 0, Task(torch.nn.Linear(2, 2)), True)


# --- texts -------------------------------------------------------------------------------------------------------

NASTY = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u2066\nround 9: fine [/bold] [red]"
FORBIDDEN = ("\x1b", "\x07", "\u202e", "\u2066", "\n", "\r")


def clean(text: str) -> bool:
    return not any(character in text for character in FORBIDDEN)


def test_reasons_lose_their_control_characters(tmp_path, caplog):
    def says(message: Message) -> Message:
        if is_training(message, 1):
            message.content = RecordDict({"refused": ConfigRecord({"reason": NASTY + "x" * 10**6})})
        return message

    run = flower(tmp_path / "flower", grid_with(tmp_path, says), "fedavg", rounds=1)
    reason = run.rounds()[0]["dropped"][EVIL]
    assert clean(reason) and "round 9: fine [/bold] [red]" in reason and len(reason) <= 500
    assert all(clean(message) for message in caplog.messages)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: RecordDict({"answer": ConfigRecord({**c["answer"], "client": NASTY}), "up": c.array_records["up"]}),
        lambda c: RecordDict({"answer": c["answer"], "up": ArrayRecord({NASTY: Array(np.zeros(10, np.float32))})}),
        lambda c: RecordDict(
            {"answer": c["answer"],
             "up": ArrayRecord({"theta": Array("float32", (10,), "numpy.ndarray", header(NASTY))})}
        ),
        lambda c: RecordDict({"answer": ConfigRecord({**c["answer"], "steps": NASTY}), "up": c.array_records["up"]}),
    ],
    ids=["client", "name", "header", "steps"],
)  # fmt: skip
def test_no_other_text_of_an_answer_gets_through(tmp_path, spoil, caplog):
    def says(message: Message) -> Message:
        if is_training(message, 1):
            message.content = spoil(message.content)
        return message

    run = flower(tmp_path / "flower", grid_with(tmp_path, says), "fedavg", rounds=1)
    assert clean(run.rounds()[0]["dropped"][EVIL])
    assert all(clean(message) for message in caplog.messages)


def header(text: str) -> bytes:
    """The bytes of an array whose header holds some text."""
    whole = Array(np.zeros(10, np.float32)).data
    return whole.replace(b"'fortran_order'", f"'{text[:13]}'".encode("latin-1", "replace"), 1)


@pytest.mark.parametrize("field", ["client", "group", "personafl", "torch", "python", "dtype"])
def test_no_text_of_an_introduction_gets_through(tmp_path, field, caplog):
    grid = grid_with(tmp_path, claims(**{field: NASTY}))
    with caplog.at_level(logging.INFO):
        run = flower(tmp_path / "flower", grid, "fedavg", clients=list(federation().ids), patience=0.3, rounds=1)
    assert all(clean(message) for message in caplog.messages)
    assert all(clean(str(value)) for value in run.manifest["resolved"].values())
    assert all(clean(str(value)) for row in RunFolder(run.path).clients().to_pylist() for value in row.values())


def test_a_type_that_torch_does_not_have_is_refused(tmp_path, caplog):
    grid = grid_with(tmp_path, claims(inputs='{"shape": [4], "dtype": "__import__"}'))
    flower(tmp_path / "flower", grid, "fedavg", clients=list(federation().ids), patience=0.3, rounds=1)
    assert "site site-4 has samples of type __import__" in caplog.text


def test_rich_does_not_read_markup_in_what_sites_say(capsys):
    from rich.console import Console
    from rich.logging import RichHandler

    from personafl.cli.console import say

    say(Console(), "without west ([/bold] [red]x)")
    assert "without west ([/bold] [red]x)" in capsys.readouterr().out
    handler = RichHandler(console=Console(), show_time=False, show_path=False)
    handler.emit(logging.makeLogRecord({"msg": "without west ([/bold] [red]x)", "levelno": 30, "levelname": "WARNING"}))
    assert "[/bold] [red]x" in capsys.readouterr().out
