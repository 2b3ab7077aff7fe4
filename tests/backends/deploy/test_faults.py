"""What may happen to a federation of real processes, and what its runs then come to."""

import contextlib
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.runs.run import Run
from tests.backends.deploy.live import PATIENCE, SITES, in_one_process
from tests.backends.flower.problem import same, same_clients, same_rounds, server_state
from tests.backends.flower.test_secrets import patterns

TOO_LATE = 45.0
"""Seconds: more than a round takes, less than what it takes Flower to give up a site that says nothing at all."""
TOO_MUCH = 12_000  # more than was asked for, and less than what nginx refuses; tests/deploy/test_intruders.py has that
"""Bytes."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def server_of(run):
    return {name: value for name, value in server_state(run).items() if name.startswith("server.")}


def personal(run, name):
    return {parameter: value.detach() for parameter, value in run.personal(name).named_parameters()}


# --- nothing happens


@pytest.mark.parametrize("algorithm", ["fedavg", "selffl", "fedamp", "ditto", "fedper", "persfl"])
def test_three_rounds_with_three_sites_equal_the_loop_engine(live, tmp_path, algorithm):
    live.begin(algorithm)
    ours = live.end()
    reference, _ = in_one_process(live, tmp_path / "loop")
    assert not live.dropped()
    assert same(server_state(ours), server_state(reference))
    assert same_clients(ours, reference)
    assert same_rounds(ours.rounds(), reference.rounds(), 9)
    common = [run.folder.models / "global.safetensors" for run in (ours, reference)]
    assert [path.exists() for path in common] in ([True, True], [False, False])
    if common[0].exists():
        assert common[0].read_bytes() == common[1].read_bytes()
    models = {name: live.model(name) for name in SITES}
    for name in SITES:
        assert same(models[name], personal(reference, name))


# --- the server breaks down


def test_a_superlink_that_is_killed_costs_at_most_the_round_in_flight(live, tmp_path):
    live.begin("ditto", rounds=4)
    live.until_training("west", 3)
    live.deployment.kill("superlink")
    live.deployment.kill("run")
    before = Run(live.deployment.run_folder).rounds()
    assert [record["round"] for record in before] == [1, 2]
    assert not live.deployment.complete

    live.deployment.start_superlink()
    live.deployment.start_run()
    ours = live.end()
    assert "going on after round 2" in live.deployment.processes["run"].output()
    reference, _ = in_one_process(live, tmp_path / "loop")
    assert not live.dropped()
    assert same_rounds(ours.rounds(), reference.rounds(), 9) and ours.rounds()[:2] == before
    assert same(server_state(ours), server_state(reference)) and same_clients(ours, reference)
    for name in SITES:
        assert same(live.model(name), personal(reference, name))


# --- a site is gone


def test_a_site_that_is_killed_in_a_round_is_left_out_and_the_run_goes_on(live, tmp_path):
    live.begin("ditto", rounds=4)
    live.until_training("west", 2)
    live.deployment.kill("west")
    assert live.deployment.processes["west"].pids() == []
    ours = live.end()

    dropped = live.dropped()
    assert list(dropped) == [2, 3, 4] and all(list(who) == ["west"] for who in dropped.values())
    assert dropped[2]["west"] == "its node is not reachable"
    reference, _ = in_one_process(live, tmp_path / "loop", dropped)
    assert same(server_of(ours), server_of(reference))
    for name in ("north", "south"):
        assert same(live.model(name), personal(reference, name))
    assert live.states("west") == [1] and not live.deployment.model("west").exists()
    assert elsewhere(ours)["without"] == ["west"]


def elsewhere(run):
    return json.loads((run.folder.models / "elsewhere.json").read_text())


def test_a_site_that_comes_back_goes_on_with_the_state_on_its_disk(live, tmp_path):
    live.begin("ditto", rounds=8)
    live.until_training("west", 2)
    live.deployment.kill("west")
    live.deployment.restart_site("west", PATIENCE)
    ours = live.end()

    dropped = live.dropped()
    assert 2 in dropped and 8 not in dropped and all(list(who) == ["west"] for who in dropped.values())
    check_as_if_absent(live, ours, tmp_path / "loop", dropped)


def check_as_if_absent(live, ours, folder, dropped):
    """The server, the sites' states and models are those of a run in which nobody was asked who did not answer."""
    reference, clients = in_one_process(live, folder, dropped)
    assert same(server_of(ours), server_of(reference)) and same_clients(ours, reference)
    for name in SITES:
        assert same(live.model(name), personal(reference, name))
        assert same(live.state(name), clients.states[name][-1])
    return clients


# --- a site is slow


def test_an_answer_that_comes_too_late_is_not_used_and_the_site_goes_back(live, tmp_path):
    live.begin("ditto", {"round_timeout": TOO_LATE}, rounds=4)
    live.until_training("west", 2)
    live.signal("west", signal.SIGSTOP)
    try:
        live.until_round(2)
        assert live.states("west") == [1]
    finally:
        live.signal("west", signal.SIGCONT)
    live.until("that west ends what it began", lambda: 2 in live.states("west"))
    ours = live.end()

    dropped = live.dropped()
    assert dropped[2]["west"] in (f"no answer within {TOO_LATE:g} s", "its node is not reachable")
    assert any("west" not in dropped.get(round, ()) for round in (3, 4))  # it is back
    check_as_if_absent(live, ours, tmp_path / "loop", dropped)


def test_a_process_that_was_given_up_and_goes_on_later_does_no_harm(live, tmp_path):
    """It stalls before it looks at the disk, the site answers in another round, and Flower ends it when it wakes."""
    live.begin("ditto", rounds=5)
    live.until_training("west", 2)
    ending = set(live.loading("west"))  # of the round before, on a busy machine
    live.until("that west reads its message", lambda: bool(set(live.loading("west")) - ending))
    stalled = [pid for pid in live.loading("west") if pid not in ending]
    live.signal("west", signal.SIGSTOP, *stalled)
    try:
        live.until_round(3)
        dropped = live.dropped()
        assert list(dropped) == [2] and dropped[2] == {"west": "its process broke down"}
    finally:
        live.signal("west", signal.SIGCONT, *stalled)
    ours = live.end()
    assert live.dropped() == dropped
    check_as_if_absent(live, ours, tmp_path / "loop", dropped)


# --- a site's disk is full


@pytest.fixture
def small_disk(live):
    """A disk of a few pages that west keeps its state on."""
    place, settings = live.deployment.layout.site("west") / "disk", live.deployment.layout.site("west") / "site.toml"
    text = settings.read_text()
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        place.rmdir()
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    settings.write_text(text.replace('folder = "."', 'folder = "disk"'))
    try:
        yield place
    finally:
        settings.write_text(text)
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


def test_a_site_whose_disk_is_full_says_so_and_is_back_when_there_is_space(live, small_disk, tmp_path):
    live.begin("ditto", rounds=6)
    live.until_round(1)

    def left_out():
        with contextlib.suppress(OSError), open(small_disk / "filler", "ab", buffering=0) as file:
            while file.write(bytes(512)):  # what the site frees meanwhile, too
                pass
        return bool(live.dropped())

    live.until("that west is left out", left_out)
    (small_disk / "filler").unlink()
    ours = live.end()

    dropped = live.dropped()
    assert dropped and max(dropped) < 6
    for reasons in dropped.values():
        assert list(reasons) == ["west"]
        assert str(small_disk) in reasons["west"] and "No space left on device; free some space" in reasons["west"]
    check_as_if_absent(live, ours, tmp_path / "loop", dropped)


# --- a site that means harm

HARMFUL = '''
"""Loaded by every Python of a site: what it trains is as it should be, what it sends is not."""

import contextlib
import json
import re
import signal
import subprocess
import sys

if sys.orig_argv[3:4] == ["do"]:
    import numpy as np
    from flwr.app import Array, ArrayRecord

    import personafl.backends.flower.app as app

    def spoiled(theta, round):
        if round == 2:
            return np.full_like(theta, np.nan)
        if round == 3:
            return np.concatenate([theta, theta])
        if round == 5:
            return np.full_like(theta, 3e38)
        if round == 6:
            return 1e9 * theta
        return np.random.default_rng(0).random({bytes} // 8)

    honest = app._train

    def train(site, content):
        answer, round = honest(site, content), content["order"]["round"]
        if round in (2, 3, 4, 5, 6):
            theta = answer["up"]["theta"].numpy()
            answer["up"] = ArrayRecord({{"theta": Array(spoiled(theta, round))}})
        return answer

    truthful = app._evaluate

    def evaluate(site, content):
        answer = truthful(site, content)
        columns = dict(answer["columns"].items())
        columns["personal_correct"] = Array(np.array([1e9]))
        answer["columns"] = ArrayRecord(columns)
        return answer

    app._train, app._evaluate = train, evaluate
    app.client_app = app.make_client_app(app._find_site)
'''


@pytest.fixture
def harmful_site(live, tmp_path, monkeypatch):
    """West with a program of its own."""
    (tmp_path / "sitecustomize.py").write_text(HARMFUL.format(bytes=TOO_MUCH))
    live.deployment.stop("west")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        live.deployment.restart_site("west", PATIENCE)
    yield
    live.deployment.stop("west")


def test_what_a_harmful_site_sends_is_refused_by_name_and_the_rounds_go_on(live, harmful_site, tmp_path):
    live.begin("ditto", rounds=7)
    ours = live.end()
    rounds, dropped = ours.rounds(), live.dropped()
    assert [record["failed"] for record in rounds] == [[], ["west"], [], [], [], [], []]
    assert list(dropped) == [3, 4, 5, 6] and all(list(who) == ["west"] for who in dropped.values())
    size = live.federation.x.shape[1] * 16 + 16 + 16 * 3 + 3
    assert dropped[3]["west"] == f"up.theta is float32 ({2 * size},), expected float32 ({size},)"
    assert re.fullmatch(r"up has \d{5} bytes, more than the \d{4} of what was asked for", dropped[4]["west"])
    assert "longer than any model" in dropped[5]["west"]
    assert "times as long as the median of this round" in dropped[6]["west"]
    # Its measures cannot be either: it has no row with numbers.
    assert {row["client"]: row["n_test"] for row in ours.clients().to_pylist()} == {"north": 12, "south": 12, "west": 0}

    reference, clients = in_one_process(live, tmp_path / "loop", {round: ["west"] for round in (2, 3, 4, 5, 6)})
    assert same(server_of(ours), server_of(reference))
    for name in SITES:  # west has gone back, too
        assert same(live.model(name), personal(reference, name))
        assert same(live.state(name), clients.states[name][-1])


# --- what leaves a site


def test_neither_samples_nor_personal_models_leave_a_site(live, tap, tmp_path):
    # With a seed of its own: what the server already has of an earlier run, Flower's nodes do not send again.
    live.begin("ditto", eval_every=1, seed=11)
    ours = live.end()
    heard = b"\0".join(map(bytes, tap.connections))
    clients = check_as_if_absent(live, ours, tmp_path / "loop", live.dropped())
    assert not live.dropped()

    sent = {name: [upload["theta"].numpy() for upload in clients.uploads[name]] for name in SITES}
    for name in SITES:
        assert len(sent[name]) == 3
        assert all(theta.tobytes() in heard for theta in sent[name])  # the tap hears what is sent
        for samples, _ in live.federation.client(name).values():
            assert not any(pattern in heard for sample in samples.numpy() for pattern in patterns(sample))
        kept = [state["v"].numpy() for state in clients.states[name]]
        for value in [*kept, *(value.numpy() for value in live.model(name).values())]:
            assert value.tobytes() not in heard
            # A weight that never had a gradient is the same in both models.
            pairs = np.lib.stride_tricks.sliding_window_view(value.reshape(-1), 2)
            own = pairs[~np.isin(pairs, np.concatenate(sent[name])).any(1)]
            assert len(own) > len(pairs) / 2
            assert not any(pattern in heard for pair in own for pattern in patterns(pair))
