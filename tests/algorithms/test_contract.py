"""What the framework makes of an algorithm's declarations, and when a client begins."""

import copy
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from personafl.algorithms import ALGORITHMS, About, Algorithm, Ditto, Each, FedAvg, Mean, Separate, Uploads
from personafl.engines import ENGINES
from personafl.errors import ConfigError, RunError
from personafl.files import checksum
from personafl.storage import checkpoint
from personafl.training.evaluation import shared_model
from tests.archetypes import FOR_ANY_MODEL
from tests.oracles.quadratic import personal, quadratics, train


@dataclass(frozen=True)
class Tracks(FedAvg):
    """FedAvg whose clients remember what they were sent when they were first seen."""

    about = About(name="tracks", paper="none", personalized="where it began", keeps="that")

    def new_client(self, theta0, sent):
        return {"first": sent["theta"], "theta0": theta0}

    def finish(self, own, carry, sent, ctx):
        return own, {"theta": carry["theta"]}

    def personal(self, own, sent):
        return own["first"]


def models(runner):
    """The global model before each of the rounds, and the cohorts, of a run that is trained on."""
    before, cohorts = [], []
    for _ in range(6):
        before.append(runner.server["theta"].double().numpy().copy())
        cohorts.append(set(runner.schedule.cohort(0, runner.round + 1, len(runner.active)).tolist()))
        runner.step()
    return before, cohorts


def first_rounds(cohorts, clients):
    return [next((r for r, cohort in enumerate(cohorts) if i in cohort), None) for i in range(clients)]


# --- about and uplink


def test_the_name_is_that_of_about_on_class_and_instance():
    assert [kind.name for kind in ALGORITHMS.values()] == [kind().about.name for kind in ALGORITHMS.values()]
    assert Tracks.name == Tracks().name == "tracks"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_setting_that_is_unknown_or_no_number_is_one_line(name):
    kind = ALGORITHMS[name]
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.nonsense'"):
        kind(nonsense=1)
    with pytest.raises(ConfigError, match="takes"):
        kind(*range(99))
    for field in fields(kind):
        if str(field.type) in ("int", "float", "bool"):
            with pytest.raises(ConfigError, match=rf"^algorithm\.{field.name} = 'one': must be [^\n]*$"):
                kind(**{field.name: "one"})
        if str(field.type) == "tuple[float, ...]":
            for wrong in (3, ["one"]):
                with pytest.raises(ConfigError, match=rf"^algorithm\.{field.name} = [^\n]*: must be a (list|number)$"):
                    kind(**{field.name: wrong})


def test_an_init_of_ones_own_takes_what_it_likes():
    class Own(FedAvg):
        def __init__(self, words):
            super().__init__(weights=words[0])

    class Inherits(Own):
        pass

    assert Own(["equal"]).weights == Inherits(words=["equal"]).weights == "equal"


def test_a_setting_of_two_types_takes_both():
    assert ALGORITHMS["selffl"](smoothing="activity") != ALGORITHMS["selffl"](smoothing=0.5)
    assert replace(Ditto(2), weights="equal") == Ditto(2.0, "equal") == copy.deepcopy(Ditto(2, weights="equal"))


def test_a_contract_fits_in_the_head():
    members = {
        name for kind in Algorithm.__mro__[:-1] for name in (*vars(kind), *vars(kind).get("__annotations__", {}))
    }
    assert len({name for name in members if not name.startswith("_")}) <= 17


@pytest.mark.parametrize("condensed", [False, True])
def test_the_rows_of_a_mean_cannot_be_read(condensed):
    uplink = {"theta": Mean(weights="samples"), "seen": Each(why="the server takes the median")}
    values = {name: torch.tensor([[0.0], [4.0]]) for name in uplink}
    uploads = Uploads(torch.arange(2), torch.tensor([1, 3]), values, uplink)
    uploads = uploads.condense() if condensed else uploads
    assert uploads.mean("theta").item() == 3.0
    assert uploads["seen"].tolist() == [[0.0], [4.0]] and uploads.mean("seen").item() == 2.0
    with pytest.raises(TypeError, match="'theta' is declared a Mean: it has no row for each client"):
        uploads["theta"]


def test_a_server_cannot_say_mean_and_take_the_median(tmp_path):
    class Median(FedAvg):
        def aggregate(self, server, uploads):
            return {"theta": uploads["theta"].median(0).values}

    with pytest.raises(TypeError, match="is declared a Mean"):
        train(quadratics(), Median(), tmp_path, rounds=1)


def test_a_server_that_must_see_each_answer_says_what_it_does_with_it(tmp_path):
    @dataclass(frozen=True)
    class Silent(FedAvg):
        uplink: ClassVar = {"theta": Each(why="it wants to", relative_to="theta")}

    with pytest.raises(NotImplementedError, match="what does the server do with each theta"):
        train(quadratics(), Silent(), tmp_path, rounds=1)


def test_what_is_not_declared_does_not_go_up(tmp_path):
    @dataclass(frozen=True)
    class Mute(FedAvg):
        uplink: ClassVar = {}

    with pytest.raises(ConfigError, match=r"fedavg sends theta, but its uplink has nothing: all that goes up must be"):
        train(quadratics(), Mute(), tmp_path, rounds=1)


# --- when a client begins


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_begins_with_what_it_is_sent_when_it_is_first_active(tmp_path, engine):
    """In cohorts of new and old ones; who was never active begins with what is sent for evaluation, each time."""
    runner = train(quadratics(clients=16), Tracks(), tmp_path, rounds=0, activity=0.25, engine=engine)
    before, cohorts = models(runner)
    begun = first_rounds(cohorts, 16)
    assert None in begun and any(r == 4 for r in begun)
    mixed = [{begun[i] < r for i in cohort} for r, cohort in enumerate(cohorts)]
    assert {True, False} in mixed
    now = runner.server["theta"].double().numpy()
    np.testing.assert_array_equal(personal(runner), [now if r is None else before[r] for r in begun])
    store = runner.clients.store
    assert store.known(np.arange(16)).tolist() == [r is not None for r in begun]
    kept = np.flatnonzero(runner.active)
    assert store.get(kept)["theta0"].equal(runner.theta0.expand(len(kept), -1))
    assert (
        runner.clients.shared(runner.snapshot(True), np.flatnonzero(runner.active == 0)).numpy().tolist()
        == now.tolist()
    )


def test_clients_that_never_were_active_share_a_model_unless_each_is_sent_its_own(tmp_path):
    shared = {}
    for name, algorithm in {
        n: ALGORITHMS[n]() for n in FOR_ANY_MODEL if "persfl" not in n and n not in ("fml", "fedbe")
    }.items():
        runner = train(quadratics(clients=6), algorithm, tmp_path / name, rounds=2, activity=0.2)
        never = np.flatnonzero(runner.active == 0)
        model = shared_model(runner.algorithm, runner.clients.task, runner.snapshot(True), never)
        shared[name] = model is not None
        if model is not None:
            np.testing.assert_allclose(personal(runner)[never], model.double().expand(len(never), -1), rtol=1e-6)
    assert {name for name, one in shared.items() if not one} == {
        "fedavg-ft",
        "fedprox-ft",
        "perfedavg",
        "cfl",
        "ifca",
        "pfedhn",
    }

    class Apart(Tracks):
        def send(self, server, ids):
            sent = super().send(server, ids)
            return type(sent)({}, {"theta": sent.shared["theta"] + ids[:, None]})

    runner = train(quadratics(clients=6), Apart(), tmp_path, rounds=2, activity=0.2)
    never = np.flatnonzero(runner.active == 0)
    assert shared_model(runner.algorithm, runner.clients.task, runner.snapshot(True), never) is None
    expected = runner.server["theta"].double().numpy() + never[:, None]
    np.testing.assert_allclose(personal(runner)[never], expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_who_fails_in_its_first_round_has_no_row_and_begins_again_later(tmp_path, engine):
    runner = train(quadratics(clients=4), Tracks(), tmp_path, rounds=0, engine=engine)
    run = runner.clients.engine.run

    def with_nan(work):
        result = run(work)
        result.up["theta"][1] = torch.nan
        return result

    runner.clients.engine.run = with_nan
    runner.step()
    assert runner.failed.tolist() == [0, 1, 0, 0]
    assert runner.clients.store.known(np.arange(4)).tolist() == [True, False, True, True]
    runner._checkpoint()
    del runner.clients.engine.run
    again = train(quadratics(clients=4), Tracks(), tmp_path, rounds=0, engine=engine)
    assert again.resume() and again.failed.tolist() == [0, 1, 0, 0]
    assert again.clients.store.known(np.arange(4)).tolist() == [True, False, True, True]
    sent = runner.server["theta"].double().numpy()
    for continued in (runner, again):
        continued.step()
        np.testing.assert_array_equal(personal(continued), [np.zeros(3), sent, np.zeros(3), np.zeros(3)])


# --- runs of earlier versions


def as_written_before(folder, **more):
    """Make the newest checkpoint one of a version whose clients kept a default state, and something `more`."""
    found = checkpoint.latest(folder)
    (number,) = found.clients
    path = folder / f"clients-{number:06d}.safetensors"
    rows = {name: value for name, value in load_file(path).items() if name != "own.store.seen"}
    save_file({**rows, **{f"own.{name}": torch.full_like(rows["active"], v) for name, v in more.items()}}, path)
    record = folder / f"round-{found.round:06d}.json"
    text, old = record.read_text(encoding="utf-8"), found.clients[number]
    text = text.replace(old["sha256"], checksum(path)).replace(
        f'"bytes": {old["bytes"]}', f'"bytes": {path.stat().st_size}'
    )
    record.write_text(text, encoding="utf-8")


def test_a_run_of_an_earlier_version_is_resumed_where_clients_keep_the_same(tmp_path):
    runner = train(quadratics(), Separate(), tmp_path, rounds=2, activity=0.5)
    runner._checkpoint()
    as_written_before(runner.folder.checkpoints)
    again = train(quadratics(), Separate(), tmp_path, rounds=0, activity=0.5)
    assert again.resume()
    for one in (runner, again):
        one.step()
    np.testing.assert_array_equal(personal(again), personal(runner))


def test_and_refused_in_one_line_where_they_kept_something_else(tmp_path):
    runner = train(quadratics(), Ditto(), tmp_path, rounds=2)
    runner._checkpoint()
    as_written_before(runner.folder.checkpoints, trained=1)
    again = train(quadratics(), Ditto(), tmp_path, rounds=0)
    with pytest.raises(
        RunError, match=r"begun by an earlier version .* keep .*trained.* and not v: .* be resumed$"
    ) as it:
        again.resume()
    assert "\n" not in str(it.value)
