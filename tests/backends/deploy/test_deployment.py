"""A federation of real processes on loopback: SuperLink, nginx, SuperNodes, keys and TLS."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.backends.deploy import Deployment, check_site, init_federation, tasks
from personafl.backends.deploy import login as login_program
from personafl.backends.deploy.processes import Process, free_ports, listening
from personafl.backends.deploy.rehearsal import find_nginx
from personafl.backends.deploy.tasks import prepare
from personafl.cli import app
from personafl.errors import ConfigError, DataError, RunError
from tests.backends.deploy.live import showing_certificate, write_data
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed: scripts/nginx.sh"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
CONFIG = """
seed = 3
rounds = {rounds}
eval_every = 0
algorithm = "fedavg"
model = {{name = "mlp", hidden = [16]}}
local = {{steps = 10, batch_size = 20}}

[federation]
input_shape = [64]
classes = 10
clients = [{clients}]
"""
SITES = ("north", "south", "west", "stranger")


def personafl(*arguments, ignored=()):
    """A command in a process that hears all signals but these, whatever this one ignores (nohup, a shell's &)."""
    reset = "[signal.signal(getattr(signal, name), signal.SIG_DFL) for name in ('SIGHUP', 'SIGTERM')]; "
    reset += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    ignore = "".join(f"signal.signal(signal.{name}, signal.SIG_IGN); " for name in ignored)
    program = f"import signal; {reset}{ignore}from personafl.cli import main; main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def family(pid):
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def left_in(folder):
    """Processes whose arguments or environment name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append(text)
    return found


def write_config(folder, sites, rounds):
    names = ", ".join(f'"{name}"' for name in sites)
    (folder / "federation.toml").write_text(CONFIG.format(clients=names, rounds=rounds))


# --- the whole of it


@dataclass
class Rehearsal:
    """What `deploy up` told and left, and its federation, whose processes still run."""

    folder: Path
    sites: tuple[str, ...]
    told: dict
    heard: set
    deployment: Deployment


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def rehearsal(request, tmp_path_factory):
    """`deploy init`, `deploy up`; the processes are stopped when the tests have looked at them.

    A site starts a process for every message, which loads torch: few take part, and it happens once.
    """
    folder, sites, kept, heard, over = tmp_path_factory.mktemp("up"), SITES[: request.param], [], set(), Event()
    place, rounds = folder / "federation", len(sites) - 1
    assert CliRunner().invoke(app, ["deploy", "init", str(place), "--sites", ",".join(SITES)]).exit_code == 0
    write_config(place, SITES, rounds)

    class Kept(Deployment):
        def __exit__(self, *problem):
            kept.append(self)

    def listen():
        while not over.wait(1.0):
            heard.update(listening(family(os.getpid())))

    thread = Thread(target=listen)
    thread.start()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("personafl.backends.deploy.Deployment", Kept)
            done = CliRunner().invoke(app, ["deploy", "up", str(place), "--sites", str(len(sites)), "--json"])
        over.set()
        thread.join()
        assert done.exit_code == 0, (done.stderr, done.exception)
        assert done.stderr == ""
        yield Rehearsal(folder, sites, json.loads(done.stdout), heard, kept[0])
    finally:
        over.set()
        for deployment in kept:
            Deployment.__exit__(deployment)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not left_in(folder)


@pytest.fixture
def deployment(rehearsal):
    return rehearsal.deployment


def test_sites_train_behind_the_proxy_as_the_loop_does(rehearsal, tmp_path):
    """Only loopback listens, and every site ends with the model that the loop gives it."""
    told, place = rehearsal.told, rehearsal.deployment.layout.folder
    assert {address for address, _ in rehearsal.heard} == {"127.0.0.1"}
    assert len(rehearsal.heard) == 2 + len(rehearsal.sites)  # nginx, the SuperLink, the sites

    assert [row["site"] for row in told["sites"]] == list(rehearsal.sites)
    assert Path(told["report"]).stat().st_size > 10_000
    handed_out = rehearsal.folder / "federation"
    assert not (handed_out / "sites" / "north" / "models").exists()  # what is handed out is as it was
    assert not (place / "operator" / "ca.key").exists()

    loop = loop_models(place, tmp_path / "loop", rehearsal.sites)
    for row in told["sites"]:
        model = load_file(place / row["model"])
        expected = loop[row["site"]]
        assert model.keys() == expected.keys()
        assert all(torch.equal(model[name], expected[name]) for name in model)


def loop_models(rehearsal, out, sites):
    """What the same data, config and seed give in one process."""
    import tomllib

    from personafl import Federation
    from personafl.config import parse
    from personafl.federation.folders import read_client
    from personafl.jobs import train_config

    tables = tomllib.loads((rehearsal / "federation.toml").read_text())
    tables.pop("federation")
    config = parse({**tables, "engine": {"name": "loop", "threads": 1}})
    data = {name: read_client(rehearsal / "sites" / name / "data.npz")[0] for name in sites}
    run = train_config(config, out, federation=Federation.from_clients(data, classes=10))
    return {name: run.personal(name).state_dict() for name in data}


# --- who is let in


@pytest.fixture(scope="module")
def without_sites(tmp_path_factory):
    """A SuperLink behind nginx that knows the key of one site, which is not there."""
    folder = tmp_path_factory.mktemp("deployed") / "federation"
    init_federation(folder, SITES)
    with Deployment(folder) as deployment:
        deployment.start_superlink()
        deployment.start_proxy()
        deployment.register("north")
        yield deployment


def supernode(deployment, log, *arguments, address=None, shown=None):
    """A SuperNode's exit code and output; it is given a few seconds to be refused in.

    `shown` is the site whose certificate it shows nginx, if any.
    """
    command = [shutil.which("flower-supernode", path=str(Path(sys.executable).parent))]
    if shown is not None:
        prepare(shown / "runtime")
        command = [sys.executable, "-P", tasks.__file__, "join", str(shown / "runtime")]
    command += ["--superlink", address or deployment.layout.address, "--max-retries", "0"]
    command += ["--port", str(free_ports(1)[0])]
    environment = {"FLWR_HOME": str(log.parent / "flower"), "FLWR_TELEMETRY_ENABLED": "0"}
    environment |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = Process("node", [*command, *map(str, arguments)], log, environment)
    end = time.monotonic() + 60
    while process.code is None and "SuperNode ID:" not in process.output() and time.monotonic() < end:
        time.sleep(0.1)
    process.stop()
    return process.code, process.output()


@pytest.mark.slow
def test_what_does_runs_ends_with_the_superlink(tmp_path):
    """However that ends: what it started waits for runs in the background, where a shell has Ctrl-C ignored."""
    init_federation(tmp_path / "federation", SITES)
    with Deployment(tmp_path / "federation", proxy=False) as deployment:
        deployment.start_superlink()
        process = deployment.processes["superlink"]
        until(lambda: any(b"do-run" in line for line in map(command_line, process.pids())))
        (server,) = [pid for pid in process.pids() if b"serve" in command_line(pid).split(b"\0")]
        os.kill(server, signal.SIGKILL)
        until(lambda: process.code is not None and not process.pids())


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.mark.slow
def test_a_registered_key_is_let_in(without_sites, tmp_path):
    """The same command as in the refusals below, with everything right: they are refused for what they lack."""
    site = without_sites.layout.site("north")
    arguments = ("--root-certificates", site / "ca.crt", "--auth-supernode-private-key", site / "node.key")
    assert "SuperNode ID:" in supernode(without_sites, tmp_path / "log", *arguments, shown=site)[1]


@pytest.mark.slow
@pytest.mark.parametrize("other", [None, "south"])
def test_a_registered_key_without_its_own_certificate_is_refused(without_sites, tmp_path, other):
    """Flower's own program has none to show; and another site's, which the same authority gave, does not help."""
    site = without_sites.layout.site("north")
    arguments = ("--root-certificates", site / "ca.crt", "--auth-supernode-private-key", site / "node.key")
    shown = other and without_sites.layout.site(other)
    code, said = supernode(without_sites, tmp_path / "log", *arguments, shown=shown)
    assert code == 1 and "Exit Code: 305" in said and "SuperNode ID:" not in said


@pytest.mark.slow
def test_a_node_without_a_key_is_refused(without_sites, tmp_path):
    """By nginx; and by the SuperLink's login, where nginx is gone around, after which Flower's node ends in peace."""
    trusted = ("--root-certificates", without_sites.layout.site("north") / "ca.crt")
    code, said = supernode(without_sites, tmp_path / "log", *trusted)
    assert code == 1 and "Exit Code: 305" in said and "SuperNode ID:" not in said
    _, said = supernode(without_sites, tmp_path / "log2", *trusted, address=without_sites.layout.private)
    assert "SuperNode ID:" not in said
    assert '"POST /v1/fleet/register-node HTTP/1.1" 401' in without_sites.processes["superlink"].output()


@pytest.mark.slow
def test_an_unregistered_key_is_refused(without_sites, tmp_path):
    site = without_sites.layout.site("south")
    arguments = ("--root-certificates", site / "ca.crt", "--auth-supernode-private-key", site / "node.key")
    code, said = supernode(without_sites, tmp_path / "log", *arguments, shown=site)
    assert code == 1 and "Exit Code: 305" in said and "SuperNode ID:" not in said


@pytest.mark.slow
def test_a_site_that_trusts_another_authority_does_not_join(without_sites, tmp_path):
    other = init_federation(tmp_path / "other", ["north"]).site("north")
    key = without_sites.layout.site("north") / "node.key"
    arguments = ("--root-certificates", other / "ca.crt", "--auth-supernode-private-key", key)
    code, said = supernode(without_sites, tmp_path / "log", *arguments)
    assert code == 1 and "CERTIFICATE_VERIFY_FAILED" in said and "SuperNode ID:" not in said


def test_plain_http_is_refused(deployment, tmp_path):
    connection = http.client.HTTPConnection(deployment.layout.address, timeout=10)
    connection.request("POST", "/v1/fleet/pull-messages", b"")
    assert connection.getresponse().status == 400
    with pytest.raises((http.client.BadStatusLine, ConnectionError)):
        connection = http.client.HTTPConnection(deployment.layout.private, timeout=10)
        connection.request("POST", "/v1/fleet/pull-messages", b"")
        connection.getresponse()
    code, said = supernode(deployment, tmp_path / "log", "--insecure")
    assert code == 1 and "SuperNode ID:" not in said


# --- what the public side passes on


def public_key(deployment, name="north"):
    """As a SuperNode names its key. It is no secret: what proves that it is one's own is the signature."""
    table = (deployment.layout.operator / "keys.conf").read_text()
    return re.search(rf'"(.*)" "{name}";', table)[1]


def ask(deployment, path, method="POST", address=None, body=b"", key=None, login=None):
    """The status of an answer; the path is sent letter by letter."""
    address = address or deployment.layout.address
    context = showing_certificate(deployment.layout.site("north"))
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as to,
    ):
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        head += f"Flwr-Public-Key: {public_key(deployment) if key is None else key}\r\n"
        head += "" if login is None else f"Personafl-Login: {login}\r\n"
        head += f"Content-Type: application/protobuf\r\nContent-Length: {len(body)}\r\n\r\n"
        to.sendall(head.encode() + body)
        answer = http.client.HTTPResponse(to)
        answer.begin()
        return answer.status


def control_and_runtime_paths():
    from fastapi.routing import iter_route_contexts
    from flwr.supercore.routers.runtime import create_runtime_router
    from flwr.superlink.routers.control import router

    routes = [*router.routes, *create_runtime_router("SuperLink").routes]
    return sorted({context.path for context in iter_route_contexts(routes)})


def login_of(deployment):
    return (deployment.layout.operator / "runtime" / "login").read_text()


def test_a_control_request_is_answered_in_private_and_refused_in_public(deployment):
    login = login_of(deployment)
    assert ask(deployment, "/v1/control/list-nodes", address=deployment.layout.private, login=login) == 200
    assert ask(deployment, "/v1/control/list-nodes", login=login) == 404


def test_nobody_on_the_operators_machine_is_the_operator_without_the_login(deployment):
    """Nor gets a run's token, nor can anything else be asked of the SuperLink but what needs a proof of its own."""
    paths = [*control_and_runtime_paths(), "/health", "/docs", "/openapi.json", "/v1/responses", "/nothing"]
    paths += ["/v1/fleet/register-node", "/v1/fleet/unregister-node"]
    for login in (None, "", "x", login_of(deployment)[:-1]):
        found = {path: ask(deployment, path, address=deployment.layout.private, login=login) for path in paths}
        assert found == dict.fromkeys(paths, 401)
    assert (deployment.layout.operator / "runtime" / "login").stat().st_mode & 0o777 == 0o600


def test_no_path_of_the_operator_is_passed_on(deployment):
    paths = control_and_runtime_paths()
    assert len(paths) > 50 and "/v1/control/start-run" in paths and "/v1/runtime/acquire-task" in paths
    assert {path: ask(deployment, path) for path in paths} == dict.fromkeys(paths, 404)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/docs", "/openapi.json", "/health", "/v1/fleet/", "/v1/fleet/register-node", "/v1/fleet/unregister-node",
        "/v1/fleet/../control/list-nodes", "/v1/fleet/pull-messages/../../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes", "/v1/fleet/..%2fcontrol/list-nodes",
        "/v1/fleet/%252e%252e/control/list-nodes",
        "//v1/control/list-nodes", "/v1//control/list-nodes", "/v1/control/list-nodes%00", "/V1/CONTROL/list-nodes",
        "/v1/fleet/pull-messages%0a", "/v1/fleet/pull-messages/", "/v1/control/list-nodes?x=/v1/fleet/pull-messages",
        "/v1/fleet/pull-messages;/../../control/list-nodes",
    ],
)  # fmt: skip
def test_a_path_that_is_not_letter_by_letter_a_sites_is_refused(deployment, path):
    assert ask(deployment, path) in (400, 404)


def test_a_path_in_disguise_reaches_flower_only_as_what_it_is(deployment):
    """nginx takes this for a site's path, which it is: Flower asks for the site's key."""
    assert ask(deployment, "/v1/control/../fleet/pull-messages") == 401


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_sites_only_post(deployment, method):
    assert ask(deployment, "/v1/fleet/pull-messages", method) in (400, 404, 405)


def test_a_site_needs_its_key_for_every_path_that_is_passed_on(deployment):
    from personafl.backends.deploy.proxy import FLEET_PATHS

    assert {path: ask(deployment, path) for path in FLEET_PATHS} == dict.fromkeys(FLEET_PATHS, 401)


def test_who_names_no_key_of_a_site_does_not_get_as_far_as_flower(deployment):
    from personafl.backends.deploy.proxy import FLEET_PATHS

    for key in ("", "x", public_key(deployment)[:-1]):
        assert {path: ask(deployment, path, key=key) for path in FLEET_PATHS} == dict.fromkeys(FLEET_PATHS, 404)


def test_more_than_a_piece_of_an_array_is_refused(deployment):
    """What a site says it will send is refused before it is sent."""
    context = showing_certificate(deployment.layout.site("north"))
    connection = http.client.HTTPSConnection(deployment.layout.address, timeout=10, context=context)
    connection.putrequest("POST", "/v1/fleet/push-object")
    connection.putheader("Content-Length", str(10**6))
    connection.putheader("Flwr-Public-Key", public_key(deployment))
    connection.endheaders()
    assert connection.getresponse().status == 413


def test_flowers_own_program_needs_the_login_and_cannot_be_used_in_public(deployment, tmp_path):
    home = tmp_path / "flower"
    home.mkdir()
    ca = deployment.layout.site("north") / "ca.crt"
    flwr = shutil.which("flwr", path=str(Path(sys.executable).parent))
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    login, codes = [sys.executable, "-P", login_program.__file__, "flwr", deployment.layout.operator / "runtime"], {}
    for side, command in (("address", [flwr]), ("address", login), ("private", [flwr]), ("private", login)):
        address = getattr(deployment.layout, side)
        (home / "config.toml").write_text(f'[superlink.it]\naddress = "{address}"\nroot-certificates = "{ca}"\n')
        done = subprocess.run([*command, "supernode", "list", "it"], env=environment, capture_output=True, text=True)
        codes[side, command is login] = done.returncode == 0
    assert [pair for pair, worked in codes.items() if worked] == [("private", True)] and len(codes) == 4


def test_a_site_sees_the_federation_with_site_check(deployment):
    found = {f.what: f for f in check_site(deployment.layout.site("north") / "site.toml", connect=True)}
    assert found["connection"].state == "good"
    assert not [finding for finding in found.values() if finding.state == "bad"]


def test_only_loopback_listens(deployment):
    heard = deployment.listening()
    assert {address for address, _ in heard} == {"127.0.0.1"}
    layout = deployment.layout
    ports = {int(address.partition(":")[2]) for address in (layout.address, layout.private)}
    ports |= set(layout.runtime_ports.values())
    assert {port for _, port in heard} == ports


# --- when it does not work out


@pytest.mark.slow
def test_a_superlink_that_cannot_start_is_one_line_with_its_last_words(tmp_path):
    folder = tmp_path / "federation"
    init_federation(folder)
    (folder / "operator" / "server.key").write_text("damaged")
    program = personafl("deploy", "up", folder)
    out, err = program.communicate()
    assert program.returncode == 2 and out == "" and "Traceback" not in err.splitlines()[-1][:200]
    assert err.splitlines()[-1].startswith("error: superlink ended with code") and "superlink.log" in err
    assert not left_in(tmp_path)


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("SIGINT", ()),
        pytest.param("SIGTERM", ("SIGINT", "SIGHUP"), marks=pytest.mark.slow),
        pytest.param("SIGHUP", (), marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_nothing_behind(tmp_path, name, ignored):
    """Nor does being asked to end in the background, where Ctrl-C is not heard, nor a terminal that is closed."""
    folder = tmp_path / "federation"
    write_data(tmp_path / "data")
    init_federation(folder)
    program = personafl("deploy", "up", folder, "--data", tmp_path / "data", ignored=ignored)
    try:
        log = folder / "rehearsal-1" / "logs" / "proxy.log"
        until(log.exists, program)
        assert left_in(tmp_path)
        program.send_signal(signal.Signals[name])
        out, err = program.communicate()
    finally:
        program.kill()
        program.communicate()
    assert program.returncode == 130 and out == "" and "every process has ended" in err and "Traceback" not in err
    assert not left_in(tmp_path)


def test_mistakes_are_told_before_anything_starts(tmp_path, monkeypatch):
    folder = tmp_path / "federation"
    with pytest.raises(ConfigError, match="holds no federation: write one with personafl deploy init"):
        Deployment(folder)
    init_federation(folder)
    with pytest.raises(ConfigError, match="--sites 4: this federation has 3: site-1, site-2, site-3"):
        Deployment(folder, 4)
    with pytest.raises(ConfigError, match="there is no site 'site-9'"):
        Deployment(folder, ["site-9"])
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match=r"holds 0 \.npz files, and 3 sites need one each"):
        Deployment(folder, data=tmp_path / "data")
    monkeypatch.setattr("personafl.backends.deploy.rehearsal.find_nginx", lambda: None)
    with pytest.raises(RunError, match="nginx is not installed: apt install nginx"):
        Deployment(folder)
    assert not [*folder.glob("rehearsal-*")]
