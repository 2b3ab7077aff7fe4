"""Sites that are late, gone, back again, broken or not who they say; and a server that breaks down."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from personafl.algorithms import SCAFFOLD, Ditto
from personafl.backends.flower import nodes as nodes_module
from personafl.engines.loop import LoopEngine
from personafl.errors import RunError, TrainingFailed
from personafl.kernels.task import Task
from personafl.models import MODELS, initialize
from personafl.settings import Local, Schedule
from personafl.storage.folder import RunFolder
from personafl.training.clients import LocalClients
from personafl.training.events import RunFiles
from personafl.training.runner import Runner
from tests.backends.flower.grid import MemoryGrid, Node, sites_of
from tests.backends.flower.problem import (
    as_table,
    federation,
    flower,
    loop,
    same,
    same_clients,
    same_tables,
    server_state,
    site_model,
    site_state,
)  # fmt: skip

LATE = "site-4"


def is_training(message: Message, round: int) -> bool:
    return message.metadata.message_type == "train" and message.metadata.group_id == str(round)


def node_of(grid: MemoryGrid, client: str) -> tuple[int, Node]:
    return next((number, node) for number, node in grid.nodes.items() if node.site.parent.name == client)


def deaf(round: int):
    return lambda message: None if is_training(message, round) else message


class CohortWithout(Schedule):
    """Everybody is active in every round, but one in round 2."""

    def cohort(self, seed, round, clients):
        everybody = np.arange(clients)
        return everybody[everybody != 1] if round == 2 else everybody


@pytest.mark.parametrize("algorithm", [Ditto(), SCAFFOLD()], ids=lambda a: a.name)
def test_a_straggler_goes_back_and_the_result_is_as_if_it_had_not_been_in_the_cohort(tmp_path, algorithm):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    _, late = node_of(grid, LATE)
    late.says = deaf(2)  # it trains, writes its state, and its answer is lost
    ours = flower(tmp_path / "flower", grid, algorithm.name, max_weight=1.0)
    assert ours.rounds()[1]["dropped"] == {LATE: "no answer within 0.3 s"}

    task = Task(initialize(MODELS["mclr"](), (4,), 2, 3))
    clients = LocalClients(LoopEngine(task, data, Local(steps=2, batch_size=4, lr=0.1), 3))
    folder = RunFolder(tmp_path / "loop")
    folder.create({})
    reference = Runner(algorithm, clients, CohortWithout(3, eval_every=0), folder, {}, [RunFiles(folder)])
    reference.run()
    assert same({n: v for n, v in server_state(ours).items() if n.startswith("server.")},
                {f"server.{n}": v for n, v in reference.server.items()})  # fmt: skip
    for k, client in enumerate(data.ids):
        row = {name: value[0] for name, value in clients.store.get(np.array([k])).items()}
        assert same(site_state(tmp_path / "sites" / client / "site.toml", 3), row)
    assert same_tables(as_table(ours), folder.clients())


@pytest.mark.parametrize(
    "algorithm", ["fedamp", "selffl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("persfl", "fedper"))]
)
def test_an_answer_that_is_lost_is_as_a_message_that_is_lost(tmp_path, algorithm):
    runs = []
    for name, hook in (("answer", "says"), ("message", "hears")):
        grid = MemoryGrid(sites_of(tmp_path / name / "sites", federation()))
        setattr(node_of(grid, LATE)[1], hook, deaf(2))
        runs.append(flower(tmp_path / name, grid, algorithm))
    assert same(server_state(runs[0]), server_state(runs[1]))
    assert same_clients(*runs)
    places = [tmp_path / name / "sites" / LATE / "site.toml" for name in ("answer", "message")]
    assert same(site_model(places[0]), site_model(places[1]))


def test_an_order_that_is_followed_late_takes_nothing_away(tmp_path):
    """A process stalls in round 2 and wakes when round 3 is over: the state that the server has accepted stays."""
    runs = []
    for name in ("late", "never"):
        grid = MemoryGrid(sites_of(tmp_path / name / "sites", federation()))
        node, held = node_of(grid, LATE)[1], []

        def hears(message, held=held):
            if message.metadata.message_type == "train" and message.metadata.group_id == "2":
                held.append(message)
                return None
            return message

        def says(message, node=node, held=held):
            if message.metadata.message_type == "train" and message.metadata.group_id == "3":
                node.app(held[0], node.context)
            return message

        node.hears = hears
        if name == "late":
            node.says = says
        runs.append(flower(tmp_path / name, grid, "ditto", rounds=5))
    assert [list(record.get("dropped", {})) for record in runs[0].rounds()] == [[], [LATE], [], [], []]
    assert same(server_state(runs[0]), server_state(runs[1]))
    places = [tmp_path / name / "sites" / LATE / "site.toml" for name in ("late", "never")]
    assert same(site_model(places[0]), site_model(places[1]))


def test_with_too_few_answers_a_round_is_given_up(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    for client in ("site-2", LATE):
        node_of(grid, client)[1].says = deaf(2)
    ours = flower(tmp_path / "two", grid, "ditto", rounds=2, min_answers=2)
    given_up = ours.rounds()[1]["dropped"]
    assert given_up["site-6"] == "given up: 1 answers, at least 2 are needed"
    assert set(given_up) == {"site-2", LATE, "site-6"}

    other = MemoryGrid(sites_of(tmp_path / "more", federation()))
    short = flower(tmp_path / "one", other, "ditto", rounds=1)
    assert same(server_state(ours), server_state(short))
    for client in federation().ids:
        site = tmp_path / "sites" / client / "site.toml"
        assert same(site_model(site), site_model(tmp_path / "more" / client / "site.toml"))


# --- answers that are not acceptable -----------------------------------------------------------------------------


def with_upload(arrays: dict[str, Array]):
    return lambda content: RecordDict({"answer": content["answer"], "up": ArrayRecord(arrays)})


def saying(**values):
    return lambda content: RecordDict(
        {"answer": ConfigRecord({**content["answer"], **values}), "up": content.array_records["up"]}
    )


def upload(value: np.ndarray, name: str = "theta"):
    return with_upload({name: Array(value)})


HUGE = Array(
    "float32", (9999999,), "numpy.ndarray", Array(np.zeros(10, np.float32)).data.replace(b"(10,)", b"(9999999,)")
)
BAD = {
    "another shape": (upload(np.zeros(11, np.float32)), "up.theta is float32 (11,), expected float32 (10,)"),
    "another name": (upload(np.zeros(10, np.float32), "v"), "up holds v, expected theta"),
    "another type": (upload(np.zeros(10, np.float64)), "up.theta is float64 (10,), expected float32 (10,)"),
    "too much": (upload(np.zeros(10**6, np.float32)), "up has 4000128 bytes, more than the 1064 of what was asked for"),
    "a lying header": (with_upload({"theta": HUGE}), "up.theta"),
    "not an array": (with_upload({"theta": Array("O", (1,), "pickle", b"cos\nsystem\n")}), "is not a numpy array"),
    "nothing": (lambda content: RecordDict(), "the message has no values 'answer'"),
    "another client": (saying(client="site-2"), "it answers as site-2 in round 2"),
    "another round": (saying(round=1), "it answers as site-4 in round 1"),
    "impossible steps": (saying(steps=-1), "-1 steps cannot be"),
    "a list for a number": (saying(steps=[1]), "answer.steps is '[1]', expected int"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A run in which a site was not heard in round 2."""
    folder = tmp_path_factory.mktemp("without")
    grid = MemoryGrid(sites_of(folder / "sites", federation()))
    node_of(grid, LATE)[1].hears = deaf(2)
    return flower(folder, grid, "fedavg")


@pytest.mark.parametrize("what", BAD)
def test_a_bad_answer_is_refused_by_name_and_the_round_goes_on(tmp_path, what, without):
    spoil, reason = BAD[what]

    def says(message: Message) -> Message:
        if is_training(message, 2):
            message.content = spoil(message.content)
        return message

    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    node_of(grid, LATE)[1].says = says
    run = flower(tmp_path, grid, "fedavg")
    dropped = run.rounds()[1]["dropped"]
    assert list(dropped) == [LATE] and reason in dropped[LATE]
    assert same(server_state(run), server_state(without))
    assert same_clients(run, without)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_counts_as_failed_and_the_site_keeps_its_old_state(tmp_path, value):
    def says(message: Message) -> Message:
        if is_training(message, 2):
            message.content = upload(np.full(10, value, np.float32))(message.content)
        return message

    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    node_of(grid, LATE)[1].says = says
    run = flower(tmp_path / "flower", grid, "fedavg")
    assert run.rounds()[1]["failed"] == [LATE]
    assert dict(zip(*(as_table(run).to_pydict()[c] for c in ("client", "failures")), strict=True))[LATE] == 1
    assert all(bool(torch.isfinite(value).all()) for value in server_state(run).values())
    # The next message said that its last good round was 1: as if it had not been asked in round 2.
    other = MemoryGrid(sites_of(tmp_path / "others", federation()))
    node_of(other, LATE)[1].hears = deaf(2)
    assert same(server_state(run), server_state(flower(tmp_path / "other", other, "fedavg")))
    assert same(*(site_model(tmp_path / place / LATE / "site.toml") for place in ("sites", "others")))


def test_sites_that_diverge_themselves_say_so(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    with pytest.raises(TrainingFailed, match="every active client diverged"):
        flower(tmp_path / "flower", grid, "fedavg", model={"name": "mlp", "hidden": [40]}, local={"lr": 1e30})
    assert not list((tmp_path / "sites").glob("*/state/*/round-*"))


@pytest.mark.parametrize(("code", "reason"), [(5, "its node is not reachable"), (8, "its process broke down")])
def test_flowers_own_errors_are_named(tmp_path, code, reason):
    def says(message: Message) -> Message:
        return Message(Error(code, "…"), reply_to=message) if is_training(message, 2) else message

    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    node_of(grid, LATE)[1].says = says
    assert flower(tmp_path / "flower", grid, "fedavg").rounds()[1]["dropped"] == {LATE: reason}


def test_a_site_that_is_not_evaluated_has_a_row_without_numbers(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    node_of(grid, LATE)[1].says = lambda message: None if message.metadata.message_type == "evaluate" else message
    run = flower(tmp_path / "flower", grid, "selffl")
    row = as_table(run).to_pylist()[1]
    assert (row["client"], row["n_test"], row["personal_correct"], row["personal_loss"]) == (LATE, 0, None, None)
    assert run.score["personal_accuracy"] > 0
    assert json.loads((run.path / "models" / "elsewhere.json").read_text())["without"] == [LATE]


# --- who is there ------------------------------------------------------------------------------------------------


def test_a_site_that_comes_back_as_another_node_goes_on_with_its_state(tmp_path):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    number, node = node_of(grid, LATE)

    def hears(message: Message) -> Message:
        if is_training(message, 1):  # after this round it has another number
            grid.nodes[5] = replace(grid.nodes.pop(number), hears=lambda message: message)
        return message

    node.hears = hears
    ours = flower(tmp_path / "flower", grid, "ditto")
    reference = loop(tmp_path / "loop", "ditto", data)
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)


def test_two_nodes_with_the_same_name_are_refused_by_name(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    grid.nodes[7] = Node(node_of(grid, LATE)[1].site)
    with pytest.raises(RunError, match="two nodes call themselves site site-4"):
        flower(tmp_path / "flower", grid, "fedavg")


def test_a_second_node_with_the_name_of_a_site_gets_nothing(tmp_path, caplog):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    heard: list[str] = []

    def spy(message: Message) -> Message:
        heard.append(message.metadata.message_type)
        return message

    def hears(message: Message) -> Message:
        if is_training(message, 1):
            grid.nodes[7] = Node(node_of(grid, LATE)[1].site, hears=spy)
        return message

    node_of(grid, "site-2")[1].hears = hears
    ours = flower(tmp_path / "flower", grid, "ditto")
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "ditto", data)))
    assert heard == ["query"]


def test_a_named_site_that_has_not_come_is_left_out_until_it_does(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    number, late = node_of(grid, LATE)
    del grid.nodes[number]

    def hears(message: Message) -> Message:
        if is_training(message, 1):
            grid.nodes[number] = late
        return message

    node_of(grid, "site-2")[1].hears = hears
    run = flower(tmp_path / "flower", grid, "fedavg", clients=list(federation().ids), patience=0.2)
    assert [record.get("dropped") for record in run.rounds()] == [{LATE: "not there"}, None, None]
    assert as_table(run).column("n_train").to_pylist() == federation().sizes("train").tolist()
    assert as_table(run).column("activations").to_pylist() == [3, 2, 3]


def test_too_few_sites_end_the_wait_with_who_is_there(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    del grid.nodes[node_of(grid, LATE)[0]]
    with pytest.raises(RunError, match=r"waited 0.2 s for the sites: 2 there \(site-2, site-6\)"):
        flower(tmp_path / "flower", grid, "fedavg", patience=0.2)


def test_a_site_with_other_samples_is_refused_with_the_reason(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    with pytest.raises(RunError, match=r"site site-4 has samples of shape \(4,\), expected \(5,\)"):
        flower(tmp_path / "flower", grid, "fedavg", input_shape=[5], patience=0.2)


def test_rounds_are_not_spent_while_nobody_is_there(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))

    def hears(message: Message) -> Message:
        if is_training(message, 1):
            grid.nodes = {}
        return message

    node_of(grid, "site-6")[1].hears = hears
    with pytest.raises(RunError, match="0 there"):
        flower(tmp_path / "flower", grid, "fedavg", patience=0.2)
    assert len(RunFolder(tmp_path / "flower" / "run").rounds()) == 1


# --- the server breaks down --------------------------------------------------------------------------------------


class PowerCut(BaseException):
    pass


def power_cut(round: int):
    """The server breaks down when a site hears or says something of this round's training."""

    def cut(message: Message) -> Message:
        if is_training(message, round):
            raise PowerCut
        return message

    return cut


@pytest.mark.parametrize("algorithm", ["ditto", "fedamp", "selffl"])
def test_a_server_that_breaks_down_loses_at_most_the_round_in_flight(tmp_path, algorithm):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    _, node = node_of(grid, "site-6")
    node.hears = power_cut(3)
    with pytest.raises(PowerCut):
        flower(tmp_path / "flower", grid, algorithm)
    assert list((tmp_path / "sites" / "site-2").glob("state/*/round-000003.safetensors"))  # it had trained already
    assert len(RunFolder(tmp_path / "flower" / "run").rounds()) == 2

    trained = []

    def count(message: Message) -> Message:
        if message.metadata.message_type == "train":
            trained.append(message.metadata.group_id)
        return message

    again = MemoryGrid({number + 50: replace(n, hears=count) for number, n in grid.nodes.items()})
    ours, reference = flower(tmp_path / "flower", again, algorithm), loop(tmp_path / "loop", algorithm, data)
    assert trained == ["3", "3", "3"]
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)


def test_sites_can_go_back_behind_a_damaged_checkpoint(tmp_path):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    _, node = node_of(grid, "site-2")
    node.says = power_cut(5)
    with pytest.raises(PowerCut):
        flower(tmp_path / "flower", grid, "ditto", rounds=5)
    newest = tmp_path / "flower" / "run" / "checkpoint" / "round-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    node.says = lambda message: message
    ours = flower(tmp_path / "flower", MemoryGrid(grid.nodes), "ditto", rounds=5)
    assert not any("dropped" in record for record in ours.rounds())
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "ditto", data, rounds=5)))


def test_a_site_can_go_back_to_the_state_before_an_answer_that_was_lost(tmp_path):
    """The state of the lost answer lies beside it, of the very round that the server goes back to."""
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    _, late = node_of(grid, LATE)
    late.says = deaf(3)
    _, node = node_of(grid, "site-6")
    node.hears = power_cut(5)
    with pytest.raises(PowerCut):
        flower(tmp_path / "flower", grid, "ditto", rounds=5)
    assert list((tmp_path / "sites" / LATE).glob("state/*/round-000005.safetensors"))  # it had its order already
    newest = tmp_path / "flower" / "run" / "checkpoint" / "round-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    node.hears = late.says = lambda message: message
    ours = flower(tmp_path / "flower", MemoryGrid(grid.nodes), "ditto", rounds=5)
    assert {record["round"]: list(record["dropped"]) for record in ours.rounds() if "dropped" in record} == {3: [LATE]}
    assert [record["round"] for record in ours.rounds()] == [1, 2, 3, 4, 5]


def test_sites_keep_few_states(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    flower(tmp_path / "flower", grid, "ditto", rounds=8)
    for client in federation().ids:
        kept = sorted(path.name for path in (tmp_path / "sites" / client).glob("state/*/round-*"))
        assert kept == [f"round-{round:06d}.safetensors" for round in (6, 7, 8)]


def test_another_run_does_not_touch_the_states_of_the_first(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    flower(tmp_path / "first", grid, "ditto", rounds=2)
    flower(tmp_path / "other", grid, "ditto", rounds=1, seed=4)
    ours = flower(tmp_path / "first", grid, "ditto", rounds=3)
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "ditto", federation())))


@pytest.fixture(autouse=True)
def ask_again_soon(monkeypatch):
    monkeypatch.setattr(nodes_module, "ANSWER", 0.5)


class Stuck(MemoryGrid):
    """A grid whose answers of one site are announced and never come whole, as Flower waits for their pieces."""

    def __init__(self, sites, name):
        super().__init__(sites)
        self._name, self._stuck, self.given_up = name, set(), threading.Event()

    def push_messages(self, messages):
        messages = list(messages)
        pushed = list(super().push_messages(messages))
        for message, question in zip(messages, pushed, strict=True):
            if message.metadata.message_type == "train" and message.content["order"]["client"] == self._name:
                self._stuck.add(question)
        return pushed

    def pull_messages(self, message_ids):
        if self._stuck & set(message_ids):
            self.given_up.wait(600)
        return super().pull_messages(message_ids)


def test_an_upload_that_is_never_finished_makes_nobody_else_wait(tmp_path):
    grid = Stuck(sites_of(tmp_path / "sites", federation()), "site-4")
    try:
        run = flower(tmp_path / "flower", grid, "fedavg", rounds=2, round_timeout=5.0)
    finally:
        grid.given_up.set()
    assert [r["dropped"] for r in run.rounds()] == [{"site-4": "no answer within 5 s"}] * 2
