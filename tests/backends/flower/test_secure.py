"""Secure aggregation in a federation: sums within their rounding, dropouts, too few, and what is refused."""

import json

import numpy as np
import pytest
import torch

from personafl.algorithms import ALGORITHMS
from personafl.algorithms.base import Mean
from personafl.backends.flower.secure.fixed_point import FixedPoint
from personafl.backends.flower.secure.settings import Secure, check_secure
from personafl.backends.flower.site_data import read_site
from personafl.config import parse
from personafl.errors import ConfigError
from tests.backends.flower.asking import Operator
from tests.backends.flower.grid import MemoryGrid, sites_of
from tests.backends.flower.problem import FEDERATION, federation, flower, loop, server_state
from tests.backends.flower.test_faults import node_of

LATE = "site-4"
JOINT = {"max_weight": 1.0}


def close(a, b, most):
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.allclose(value.double(), b[name].double(), rtol=0, atol=most), name


def swallow(kind, round):
    """Somebody who does not hear, or does not say, messages of a kind in a round."""
    return lambda m: None if (m.metadata.message_type, m.metadata.group_id) == (kind, str(round)) else m


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "fedper", "scaffold", "qffl"])
def test_a_run_agrees_with_the_loop_within_its_rounding(tmp_path, algorithm):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    ours = flower(tmp_path / "flower", grid, algorithm, secure={}, **JOINT)
    assert not any("dropped" in record for record in ours.rounds())
    code, reference = FixedPoint(16.0, 32, 3), loop(tmp_path / "loop", algorithm, data)
    # Three halves of a step, over a sum of weights of at least 1, in each of three rounds; single precision beside it,
    # and what training makes of a difference of the start (steps of 0.1 on a loss that bends little).
    bound = 3 * (1.5 * code.step) + 3e-7
    # SCAFFOLD's c is a change over steps × lr: 5 times as large.
    close(server_state(ours), server_state(reference), bound * (5 if algorithm == "scaffold" else 2))
    assert ours.manifest["secure"] == {"colluders": 0, "range": 16.0, "bits": 32}


def test_a_single_sum_is_off_by_no_more_than_its_bound():
    rng = np.random.default_rng(0)
    for count, bits in ((3, 32), (50, 32), (7, 64)):
        code, values = FixedPoint(4.0, bits, count), rng.uniform(-4, 4, (count, 1000))
        values[0], values[1] = 4.0, -4.0
        total = np.sum([code.encode(row) for row in values], 0, dtype=code.kind)
        error = np.abs(code.decode(total) - values.sum(0)).max()
        assert error <= count * code.step / 2 + 1e-12
        assert (
            np.abs(code.decode(np.sum([code.encode(values[0])] * count, 0, dtype=code.kind)) - 4 * count).max() < 1e-6
        )


@pytest.mark.parametrize(
    "kind,way,counts",
    [
        ("query.keys", "hears", False),
        ("query.shares", "says", False),
        ("train.secure", "hears", False),
        ("train.secure", "says", False),
        ("query.unmask", "says", True),
    ],
)
def test_a_site_that_goes_at_any_time_does_not_spoil_the_round(tmp_path, kind, way, counts):
    """Whose vector has arrived is in the sum, even if it does not help to unmask it."""
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data))
    setattr(node_of(grid, LATE)[1], way, swallow(kind, 2))
    ours = flower(tmp_path / "flower", grid, "fedavg", secure={}, rounds=2, eval_every=2, **JOINT)
    dropped = ours.rounds()[1].get("dropped", {})
    assert dropped == ({} if counts else {LATE: "no answer within 0.3 s"})
    other = MemoryGrid(sites_of(tmp_path / "others", data))
    if not counts:
        node_of(other, LATE)[1].hears = swallow("train", 2)
    plain = flower(tmp_path / "plain", other, "fedavg", rounds=2, eval_every=2, **JOINT)
    close(server_state(ours), server_state(plain), 2 * 1.5 * FixedPoint(16.0, 32, 3).step + 2e-7)


def test_below_the_threshold_a_round_is_given_up_in_one_line_and_the_run_goes_on(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    for client in ("site-2", LATE):
        node_of(grid, client)[1].says = swallow("train.secure", 2)
    ours = flower(tmp_path / "flower", grid, "ditto", secure={}, **JOINT)
    late, given_up = "no answer within 0.3 s", "given up: 1 sites answered, secure.threshold is 2"
    assert [record.get("dropped") for record in ours.rounds()] == [
        None, {"site-2": late, LATE: late, "site-6": given_up}, None
    ]  # fmt: skip
    assert [record["bytes_up"] for record in ours.rounds()][2] > 0


def test_two_that_go_leave_too_few_to_unmask(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    for client in ("site-2", LATE):
        node_of(grid, client)[1].hears = swallow("query.unmask", 1)
    ours = flower(tmp_path / "flower", grid, "fedavg", secure={}, rounds=2, eval_every=2, **JOINT)
    few = "given up: 1 sites helped to unmask, secure.threshold is 2"
    assert ours.rounds()[0]["dropped"] == dict.fromkeys(["site-2", LATE, "site-6"], few)
    assert "dropped" not in ours.rounds()[1]


def test_an_answer_that_does_not_fit_is_left_out_with_the_reason(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    ours = flower(tmp_path / "flower", grid, "fedavg", secure={"range": 1e-4}, rounds=1, eval_every=1)
    why = "its answer has numbers beyond ± 0.0001, which secure.range must cover"
    assert ours.rounds()[0]["dropped"]["site-2"] == f"site site-2: {why}"


def test_a_wrong_share_is_noticed_and_the_round_given_up(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))

    def lie(message):
        if message.metadata.message_type == "query.unmask" and message.metadata.group_id == "1":
            answer = message.content["answer"]
            shares = json.loads(answer["text"])
            shares["site-6"] = shares["site-6"][:-2] + ("00" if shares["site-6"][-2:] != "00" else "11")
            answer["text"] = json.dumps(shares)
        return message

    node_of(grid, "site-2")[1].says = lie
    ours = flower(tmp_path / "flower", grid, "fedavg", secure={}, rounds=2, eval_every=2, **JOINT)
    why = set(ours.rounds()[0]["dropped"].values())
    unfit = "the answers do not add up: a site has sent wrong shares or another weight"
    assert why in ({"the shares of site-6 do not fit together"}, {unfit})
    assert "dropped" not in ours.rounds()[1]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_whose_uplink_is_a_mean_can_be_summed_and_no_other(name):
    algorithm = ALGORITHMS[name]()
    fits = bool(algorithm.uplink) and all(isinstance(how, Mean) for how in algorithm.uplink.values())
    if fits:
        return check_secure(Secure(), algorithm, 3)
    with pytest.raises(ConfigError, match=rf"^\[secure\] cannot be combined with {name}: .*leave \[secure\] out$"):
        check_secure(Secure(), algorithm, 3)


@pytest.mark.parametrize(
    "secure,sites,why",
    [
        ({}, 2, r"\[secure\] needs at least 3 sites in a round, there are 2: leave it out"),
        ({"threshold": 2}, 4, r"secure.threshold = 2: must be 3 to 4: of 4 sites in a round, 0 of them colluding"),
        ({"threshold": 3, "colluders": 2}, 5, r"secure.threshold = 3: must be 4 to 5: of 5 sites in a round, 2 of"),
        ({"threshold": 1}, 3, r"secure.threshold = 1: must be at least 2"),
        ({"colluders": 2}, 3, r"secure.threshold = 4: must be 4 to 3"),
    ],
)
def test_what_cannot_be_is_refused(secure, sites, why):
    with pytest.raises(ConfigError, match=why):
        Secure(**secure).check_sites(sites)


def test_a_simulation_has_nobody_to_hide_from():
    with pytest.raises(ConfigError, match=r"^\[secure\] is for a federation"):
        parse({"secure": {}})


def test_a_federation_of_two_is_refused_before_anybody_is_asked(tmp_path):
    with pytest.raises(ConfigError, match="needs at least 3 sites"):
        flower(tmp_path, MemoryGrid({}), "fedavg", secure={}, sites=2)


def test_a_site_may_insist_on_sums(tmp_path):
    data = federation()
    grid = MemoryGrid(sites_of(tmp_path / "sites", data, least_together=2))
    plain = flower(tmp_path / "plain", grid, "fedavg", rounds=1, eval_every=1)
    why = "answers in a sum over at least 2 sites (least_together), this run asks for its answer alone: "
    why += "it has no [secure]"
    assert plain.rounds()[0]["dropped"] == {client: f"site {client} {why}" for client in data.ids}
    ours = flower(tmp_path / "secure", grid, "fedavg", rounds=1, eval_every=1, secure={})
    assert "dropped" not in ours.rounds()[0]
    many = MemoryGrid(sites_of(tmp_path / "many", data, least_together=3))
    few = flower(tmp_path / "few", many, "fedavg", rounds=1, eval_every=1, secure={})
    assert "this run asks for a sum of 2 or more" in few.rounds()[0]["dropped"]["site-2"]


def test_a_site_keeps_no_secret_after_a_round(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path / "sites", federation()))
    seen = []
    node_of(grid, LATE)[1].hears = lambda m: seen.extend((tmp_path / "sites" / LATE).rglob("secure.json")) or m
    flower(tmp_path / "flower", grid, "fedavg", secure={}, rounds=1, eval_every=1)
    assert seen and seen[0].parent.parent.name == "state"
    assert not list((tmp_path / "sites").rglob("secure.json"))


def test_max_weight_is_in_what_sites_are_told(tmp_path):
    data = federation()
    runs = []
    for name, more in (("plain", {}), ("secure", {"secure": {}})):
        grid = MemoryGrid(sites_of(tmp_path / f"{name}-sites", data))
        runs.append(flower(tmp_path / name, grid, "fedavg", rounds=1, eval_every=1, max_weight=0.35, **more))
    close(server_state(runs[0]), server_state(runs[1]), 1.5 * FixedPoint(16.0, 32, 3).step + 2e-7)


def test_a_site_reads_its_members_beside_its_file(tmp_path):
    (node,) = list(sites_of(tmp_path, federation(), members="members").values())[:1]
    assert read_site(node.site).members == str(node.site.parent / "members")
    assert FEDERATION["sites"] == 3


def test_a_run_that_says_it_is_secure_gets_no_plain_answer(tmp_path):
    """An operator who asks for single answers in the name of such a run, at a site whose policy trusts the name."""
    asking = Operator(tmp_path)
    with pytest.raises(ConfigError, match=r"site ann: this run has .secure., and its answer is asked for alone"):
        asking.train(asking.job(secure={}))
    assert asking.train(asking.job()).up
