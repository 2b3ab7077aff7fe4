"""Sites that pose as others or command others: each attack works where nothing is signed, and not where it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from personafl.backends.deploy.keys import make_key
from personafl.backends.flower import nodes as nodes_module
from personafl.backends.flower.app import serve
from personafl.backends.flower.messages import pack
from personafl.backends.flower.signing import SEAL, OperatorSeal, SiteSeal
from personafl.errors import ConfigError, DataError, RunError
from personafl.runs.run import Run
from tests.backends.flower.grid import MemoryGrid, Node, sites_of, travelled
from tests.backends.flower.problem import (
    FEDERATION,
    SETTINGS,
    federation,
    loop,
    same,
    same_clients,
    server_state,
    site_model,
)

VICTIM, WEST = "site-2", "site-6"


def operator(folder: Path, names) -> dict[str, bytes]:
    """An operator's folder with its key and the sites' public ones; the private ones."""
    (folder / "keys").mkdir(parents=True)
    private, public = make_key("orders")
    (folder / "orders.key").write_bytes(private)
    (folder / "orders.pub").write_bytes(public)
    keys = {name: make_key(name) for name in names}
    for name, (_, public) in keys.items():
        (folder / "keys" / f"{name}.pub").write_bytes(public)
    return {name: private for name, (private, _) in keys.items()}


class Joint:
    """Three sites, with keys or without."""

    def __init__(self, folder: Path, signed: bool) -> None:
        self.folder, self.keys = folder, folder / "operator" if signed else None
        data = federation()
        self.grid = MemoryGrid(sites_of(folder / "sites", data))
        if self.keys:
            keys = operator(self.keys, data.ids)
            for number, node in self.grid.nodes.items():
                node.context = Context(1, number, {"site": str(node.site)}, RecordDict(), {})
                place = node.site.parent
                (place / "node.key").write_bytes(keys[place.name])
                (place / "orders.pub").write_bytes((self.keys / "orders.pub").read_bytes())
                with open(node.site, "a") as file:
                    file.write('key = "node.key"\norders = "orders.pub"\n')

    def node(self, client: str) -> Node:
        return next(node for node in self.grid.nodes.values() if node.site.parent.name == client)

    def run(self, algorithm, name="run", **more) -> Run:
        joint = {**FEDERATION, **{key: more.pop(key) for key in list(more) if key in FEDERATION}}
        tables = {**SETTINGS, "algorithm": algorithm, **more, "federation": joint}
        (self.folder / "federation.toml").write_text(tomli_w.dumps(tables))
        serve(self.grid, self.folder / "federation.toml", self.folder / name, self.keys)
        return Run(self.folder / name)


@pytest.fixture(params=[False, True], ids=["unsigned", "signed"])
def joint(request, tmp_path):
    return Joint(tmp_path, request.param)


@pytest.fixture(autouse=True)
def ask_again_soon(monkeypatch):
    monkeypatch.setattr(nodes_module, "ANSWER", 0.5)


# --- nothing happens ---------------------------------------------------------------------------------------------


def test_signatures_change_no_bit_of_a_result(tmp_path):
    ours, reference = Joint(tmp_path, True).run("ditto"), loop(tmp_path / "loop", "ditto", federation())
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)


def test_a_run_that_goes_on_and_another_run_are_obeyed(tmp_path):
    joint = Joint(tmp_path, True)
    joint.run("ditto", rounds=2)
    joint.run("ditto", "other", rounds=1, seed=4)
    ours = joint.run("ditto", rounds=3)
    assert not any("dropped" in record for record in ours.rounds())
    assert same(server_state(ours), server_state(loop(tmp_path / "loop", "ditto", federation())))


def test_an_operator_whose_clock_was_set_back_is_obeyed(tmp_path, monkeypatch):
    joint = Joint(tmp_path, True)
    joint.run("fedavg", rounds=1)
    monkeypatch.setattr("personafl.backends.flower.signing.time.time_ns", lambda: 10**9)
    assert not any("dropped" in record for record in joint.run("fedavg", rounds=2).rounds())


# --- a site that says it is another ------------------------------------------------------------------------------


def pose(node: Node, name: str, heard: list[str]) -> None:
    """Have a site call itself by another's name, in everything it says."""

    def says(message: Message) -> Message:
        heard.append(message.metadata.message_type)
        for record in ("site_info", "answer"):
            if record in message.content:
                message.content[record] = ConfigRecord({**message.content[record], "client": name})
        return message

    node.says = says


def test_a_site_that_says_it_is_another_gets_nothing_and_keeps_nobody_out(joint):
    """The one who poses is asked first, and the true site comes later."""
    first = dict(sorted(joint.grid.nodes.items(), key=lambda item: item[1].site.parent.name != WEST))
    joint.grid.nodes = first
    heard: list[str] = []
    pose(joint.node(WEST), VICTIM, heard)
    settings = {"sites": 2, "patience": 0.6, "rounds": 1}
    if joint.keys:
        run = joint.run("fedavg", **settings)
        assert "query" in heard and set(heard) == {"query"}
        assert run.manifest["resolved"]["sites"] == ["site-2", "site-4"] and "dropped" not in run.rounds()[0]
    else:  # what it could do: two nodes claim the name, and nothing goes on
        with pytest.raises(RunError, match="two nodes call themselves site site-2"):
            joint.run("fedavg", **settings)


def test_why_a_site_is_refused_is_said(tmp_path, caplog):
    joint = Joint(tmp_path, True)
    pose(joint.node(WEST), VICTIM, [])
    with pytest.raises(RunError, match=r"says that it is site site-2, and has not signed with that site's key"):
        joint.run("fedavg", patience=0.2)


def test_a_site_without_a_key_at_the_operator_is_refused(tmp_path):
    joint = Joint(tmp_path, True)
    (joint.keys / "keys" / f"{WEST}.pub").unlink()
    with pytest.raises(RunError, match=r"of whom the operator has no key in keys/"):
        joint.run("fedavg", patience=0.2)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_answer_that_was_changed_on_its_way_is_refused(tmp_path, kind):
    def says(message: Message) -> Message:
        if message.metadata.message_type == kind:
            record = "up" if kind == "train" else "columns"
            arrays = {name: torch.from_numpy(array.numpy() + 1) for name, array in message.content[record].items()}
            message.content[record] = pack(arrays)
        return message

    joint = Joint(tmp_path, True)
    joint.node(WEST).says = says
    run = joint.run("fedavg", rounds=1)
    why = "it says that it is site site-6, and has not signed with that site's key"
    if kind == "train":
        assert run.rounds()[0]["dropped"] == {WEST: why}
    else:
        assert json.loads((run.path / "models" / "elsewhere.json").read_text())["without"] == [WEST]


def test_an_answer_to_another_order_is_refused(tmp_path):
    kept: list[RecordDict] = []

    def says(message: Message) -> Message:
        if message.metadata.message_type == "train":
            kept.append(message.content)
            message.content = kept[0]
            if len(kept) == 2:  # its own true answer, with the round's number of the other
                kept[0]["answer"]["round"] = 2
        return message

    joint = Joint(tmp_path, True)
    joint.node(WEST).says = says
    dropped = joint.run("fedavg", rounds=2).rounds()[1]["dropped"]
    assert list(dropped) == [WEST] and "has not signed" in dropped[WEST]
    kept[0]["answer"]["round"] = 1
    seal = OperatorSeal(joint.keys)
    order = RecordDict()
    seal.sign(order, "train", WEST, "run")
    with pytest.raises(DataError, match="site site-6 answers another question"):
        seal.check(kept[0], WEST, order)


# --- a site that commands another --------------------------------------------------------------------------------


def forged(order: RecordDict, kind: str, **values) -> Message:
    """An order as another node may push it: Flower names the SuperLink as its sender, if the node says so."""
    records = dict(order.items())
    records["order"] = ConfigRecord({**order["order"], **values})
    job = json.loads(order["order"]["job"])
    job["local"] = {**job["local"], "lr": 1e-30}
    records["order"]["job"] = json.dumps(job, sort_keys=True)
    for name in ("shared", "common"):
        if name in order:
            records[name] = pack({n: torch.full(tuple(a.shape), 666.0) for n, a in order[name].items()})
    return Message(RecordDict(records), 1, kind, ttl=600.0, group_id="1")


def reply_of(node: Node, message: Message) -> RecordDict:
    return node.app(travelled(message)[0], node.context).content


def orders_to(node: Node) -> list[Message]:
    """The orders of training and evaluation that a site hears, as they were."""
    heard: list[Message] = []

    def hears(message: Message) -> Message:
        if message.metadata.message_type != "query":
            heard.append(travelled(message)[0])
        return message

    node.hears = hears
    return heard


def test_a_site_cannot_command_another(joint):
    """West takes an order of its own as a pattern: every weight of the other's personal model becomes 666."""
    victim = joint.node(VICTIM)
    heard = orders_to(joint.node(WEST))
    joint.run("fedavg", rounds=1)
    before = site_model(victim.site)
    changes = {"client": VICTIM, "round": 1, "accepted": 0, "durable": 0}
    train = forged(heard[0].content, "train", **changes)
    first = reply_of(victim, train)
    evaluate = forged(heard[-1].content, "evaluate", **{**changes, "accepted": 1})
    second = reply_of(victim, evaluate)
    if joint.keys:
        for reply in (first, second):
            assert reply["refused"]["reason"] == f"site {VICTIM} got an order that the operator has not signed"
        assert same(site_model(victim.site), before)
    else:
        assert all(bool((value == 666).all()) for value in site_model(victim.site).values())


def test_an_order_without_a_signature_is_refused(tmp_path):
    joint = Joint(tmp_path, True)
    heard = orders_to(joint.node(WEST))
    joint.run("fedavg", rounds=1)
    order = heard[0].content
    del order[SEAL]
    reply = reply_of(joint.node(WEST), Message(order, 1, "train", ttl=600.0, group_id="1"))
    assert (
        reply["refused"]["reason"] == f"site {WEST} takes only orders that are signed by the operator, and this is not"
    )
    with pytest.raises(RunError, match=f"site {WEST} takes only orders that are signed by the operator"):
        joint.keys = None
        joint.run("fedavg", "unsigned", patience=0.2)


def test_an_order_for_one_site_is_not_obeyed_by_another_nor_of_another_kind_nor_twice(tmp_path):
    joint = Joint(tmp_path, True)
    heard = orders_to(joint.node(WEST))
    joint.run("fedavg", rounds=1)
    order = heard[0].content
    for client, kind, why in (
        (VICTIM, "train", f"site {VICTIM} got an order that is meant for {WEST}, train"),
        (WEST, "evaluate", f"site {WEST} got an order that is meant for {WEST}, train"),
        (WEST, "train", f"site {WEST} has had this order, or a later one: it is not followed again"),
    ):
        reply = reply_of(joint.node(client), Message(order, 1, kind, ttl=600.0, group_id="1"))
        assert reply["refused"]["reason"] == why


def test_a_question_who_a_node_is_is_not_passed_on(tmp_path):
    """A site that passes the operator's question on would learn what another says of itself, or show it as its own."""
    joint = Joint(tmp_path, True)
    asked: list[Message] = []
    joint.node(WEST).hears = lambda message: asked.append(travelled(message)[0]) or message
    joint.run("fedavg", rounds=1)
    reply = reply_of(joint.node(VICTIM), Message(asked[0].content, 1, "query", ttl=600.0))
    assert "site_info" not in reply and "is meant for node" in reply["refused"]["reason"]


@pytest.fixture
def pair(tmp_path):
    """The operator's side and a site's."""
    keys = operator(tmp_path / "operator", ["north"])
    (tmp_path / "node.key").write_bytes(keys["north"])

    def site():
        return SiteSeal("north", tmp_path / "north", tmp_path / "operator" / "orders.pub", tmp_path / "node.key")

    return OperatorSeal(tmp_path / "operator"), site


def test_a_site_that_starts_anew_remembers_which_orders_it_has_had(pair):
    seal, site = pair
    orders = [RecordDict({"order": ConfigRecord({"round": k})}) for k in range(3)]
    for order in orders:
        seal.sign(order, "train", "north", "run")
    site().check(orders[1], "train", 7)
    for old in orders[:2]:
        with pytest.raises(ConfigError, match="has had this order, or a later one"):
            site().check(old, "train", 7)
    site().check(orders[2], "train", 7)


def test_an_order_of_a_run_that_is_long_over_is_not_obeyed(pair):
    """Not even by a site whose state of that run was deleted."""
    seal, site = pair
    old, new = RecordDict(), RecordDict()
    seal.sign(old, "train", "north", "old")
    seal.sign(new, "train", "north", "new")
    site().check(new, "train", 7)
    with pytest.raises(ConfigError, match="has had this order, or a later one"):
        site().check(old, "train", 7)


def test_runs_side_by_side_may_overtake_each_other(pair):
    seal, site = pair
    orders = {name: [RecordDict(), RecordDict()] for name in "ab"}
    for k in range(2):
        for name in "ab":
            seal.sign(orders[name][k], "train", "north", name)
    site().check(orders["a"][0], "train", 7)
    site().check(orders["b"][0], "train", 7)
    site().check(orders["b"][1], "train", 7)
    site().check(orders["a"][1], "train", 7)


@pytest.mark.parametrize("change", ["value", "type", "more", "array", "name", "number", "run"])
def test_everything_in_an_order_is_signed(pair, change):
    seal, site = pair
    order = RecordDict({"order": ConfigRecord({"round": 1}), "shared": pack({"theta": torch.zeros(3)})})
    seal.sign(order, "train", "north", "run")
    if change == "value":
        order["order"]["round"] = 2
    elif change == "type":
        order["order"]["round"] = True
    elif change == "more":
        order["theta0"] = pack({"theta0": torch.zeros(3)})
    elif change == "array":
        order["shared"] = pack({"theta": torch.tensor([0.0, 0.0, 1e-30])})
    elif change == "name":
        order["each"] = order["shared"]
        del order["shared"]
    else:
        order[SEAL][change] = {"number": order[SEAL]["number"] + 1, "run": "other"}[change]
    with pytest.raises(ConfigError, match="that the operator has not signed"):
        site().check(order, "train", 7)


def test_another_operators_orders_are_refused(pair, tmp_path):
    _, site = pair
    operator(tmp_path / "other", [])
    order = RecordDict()
    OperatorSeal(tmp_path / "other").sign(order, "train", "north", "run")
    with pytest.raises(ConfigError, match="that the operator has not signed"):
        site().check(order, "train", 7)


def test_keys_that_are_missing_or_no_keys_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"the key .*orders.key cannot be read: No such file"):
        OperatorSeal(tmp_path)
    (tmp_path / "orders.key").write_text("no key")
    with pytest.raises(ConfigError, match=r"the key .*orders.key cannot be read"):
        OperatorSeal(tmp_path)


def test_a_site_names_both_keys_or_none(tmp_path):
    from personafl.backends.flower.site_data import SiteSettings

    with pytest.raises(ConfigError, match="orders"):
        SiteSettings("a", "data.npz", ".", key="node.key")
    assert replace(SiteSettings("a", "data.npz", "."), key="k", orders="o").key == "k"
