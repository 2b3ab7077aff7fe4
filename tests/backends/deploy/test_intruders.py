"""Attacks on a federation of real processes, through nginx: by a site with a key of its own, by a stranger without one,
and by another user of a site's machine."""

import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from personafl.backends.deploy.rehearsal import find_nginx
from personafl.backends.flower.job import JobDescription, fingerprint, read_job
from personafl.backends.flower.messages import pack
from personafl.kernels.task import Task
from personafl.models import initialize
from tests.backends.deploy.live import CLASSES, FEATURES, PATIENCE, showing_certificate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed: scripts/nginx.sh"),
]
MUCH = 31 * 10**6
HUGE = 300_000_000
FAIR = 150_000_000
"""Bytes by which a server's memory may grow while it is attacked: a part of what is sent to it."""
HURRY = 60.0


def resident(live):
    """The memory of the SuperLink, in bytes."""
    status = Path(f"/proc/{live.deployment.processes['superlink'].pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


# --- a site that commands another


def node_id(live, name):
    return int(re.findall(r"SuperNode ID: (\d+)", live.deployment.processes[name].output())[-1])


def push_as(live, name, message):
    """Push a message with the key of a site, as whatever it says that it is."""
    site = live.deployment.layout.site(name)
    key = load_ssh_private_key((site / "node.key").read_bytes(), None)
    node = Node(node_id=node_id(live, name))
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    message.metadata.__dict__["_message_id"] = message.object_id
    address = f"https://{live.deployment.layout.address}"
    with FleetHttpClient(address, interceptors=interceptors, verify=showing_certificate(site)) as client:
        said = client.PushMessages(
            PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
            )
        )
        for name, thing in get_all_nested_objects(message).items():
            if name in said.objects_to_push:
                request = PushObjectRequest(
                    node=node, run_id=message.metadata.run_id, object_id=name, object_content=thing.deflate()
                )
                request.session_id = said.session_id
                assert client.PushObject(request).stored


def forged(live, kind, accepted):
    """An order for north as an operator without a key would give it: a model of nothing but 666."""
    settings = live.settings
    task = Task(initialize_model(settings))
    local = {**settings["local"], "lr": 1e-30}
    job = JobDescription(
        settings["seed"], {"name": "fedavg"}, settings["model"], local, (FEATURES,), CLASSES, CLASSES, 3, None,
        fingerprint(task.theta0),
    )  # fmt: skip
    assert read_job(job.text()) == job
    order = {"job": job.text(), "client": "north", "round": 1, "accepted": accepted, "durable": 0}
    order |= {"last": True, "upload": json.dumps({"theta": ("float32", list(task.theta0.shape))})}
    shared = pack({"theta": torch.full_like(task.theta0, 666.0)})
    content = {"order": ConfigRecord(order), "shared": shared, "each": pack({})}
    return Message(RecordDict(content), node_id(live, "north"), kind, ttl=600.0, group_id="1")


def initialize_model(settings):
    from personafl.config import parse

    return initialize(parse({**settings, "algorithm": "fedavg"}).model, (FEATURES,), CLASSES, settings["seed"])


def test_a_site_cannot_command_another_through_flower(live):
    """Flower takes west's message for the SuperLink's own, and gives it to north: north does not obey."""
    live.begin("fedavg", rounds=6)
    live.until_round(1)
    north = live.deployment.processes["north"]
    run = int(re.search(r"Successfully started run (\d+)", live.deployment.processes["run"].output())[1])
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run, 1, SUPERLINK_NODE_ID
    for message in (forged(live, "train", 0), forged(live, "evaluate", 1)):
        push_as(live, "west", message)
    refused = "site north takes only orders that are signed by the operator"
    live.until("that north got both", lambda: north.output().count(refused) >= 2)
    live.end()
    assert not live.dropped()
    assert not any(bool((value == 666).any()) for value in live.model("north").values())
    assert len(list(live.deployment.layout.site("north").glob("state/*"))) == 1  # of the true run


# --- a site that says it is another


@pytest.fixture
def posing_site(live):
    """West with its own key and north's name."""
    settings = live.deployment.layout.site("west") / "site.toml"
    text = settings.read_text()
    live.deployment.stop("west")
    settings.write_text(text.replace('id = "west"', 'id = "north"'))
    live.deployment.restart_site("west", PATIENCE)
    yield
    live.deployment.stop("west")
    settings.write_text(text)


def test_a_site_that_says_it_is_another_is_refused_and_keeps_nobody_out(live, posing_site):
    live.begin("fedavg", {"patience": 2 * HURRY}, rounds=2)
    live.end()
    said = live.deployment.processes["run"].output()
    assert "it says that it is site north, and has not signed with that site's key" in said
    assert live.dropped() == {1: {"west": "not there"}, 2: {"west": "not there"}}
    assert live.states("north") and not live.states("west")


# --- another user of a site's machine

ASK = """
import http.client, ssl, sys
port, body = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
headers = {"Content-Type": "application/protobuf", **dict(line.split("=", 1) for line in sys.argv[3:])}
try:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=ssl._create_unverified_context())
    connection.request("POST", "/v1/runtime/acquire-task", body, headers)
    answer = connection.getresponse()
except ssl.SSLError:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/runtime/acquire-task", body, headers)
    answer = connection.getresponse()
print(answer.status, answer.read().hex())
"""


def ask_for_a_task(live, name, user="nobody", headers=()):
    """What a local user is told who asks a SuperNode for its task."""
    request = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    command = [shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable, "-c", ASK]
    command += [str(live.deployment.layout.runtime_ports[name]), request.SerializeToString().hex(), *headers]
    as_user = ["setpriv", f"--reuid={user}", "--clear-groups"] if user else []
    done = subprocess.run([*as_user, *command], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    status, body = done.stdout.split(" ")
    return int(status), bytes.fromhex(body)


def version_headers():
    import httpx
    from flwr.supercore.protobuf.client import ProtobufRequestContext

    request = httpx.Request("POST", "https://x")
    context = ProtobufRequestContext.__new__(ProtobufRequestContext)
    object.__setattr__(context, "request", request)
    RuntimeVersionHttpInterceptor(component_name="SuperExec").intercept(context, lambda context: httpx.Response(200))
    return [f"{key}={value}" for key, value in request.headers.items() if key.startswith("flwr")]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become somebody else")
def test_another_user_gets_no_task_from_a_supernode(live):
    """The program that may ask is stopped meanwhile, so that there is a task to be had."""
    live.begin("fedavg", rounds=2)
    live.until_round(1)
    workers = [pid for pid in live.deployment.processes["west"].pids() if b"\0work\0" in cmdline(pid)]
    assert len(workers) == 1
    live.signal("west", signal.SIGSTOP, *workers)
    try:
        live.until_training("west", 2)
        headers = version_headers()
        status, body = ask_for_a_task(live, "west", headers=headers)
        assert status == 401 and b"token" not in body.lower().replace(b"runtime_token", b"")
        secret = derive_auth_secret((live.deployment.layout.site("west") / "runtime" / "secret").read_bytes())
        proof = create_superexec_auth_metadata(
            auth_secret=secret,
            method="/flwr.proto.Runtime/AcquireTask",
            request=AcquireTaskRequest(supported_task_types=["flwr-clientapp"]),
        )
        known = [*headers, *(f"{key}={value}" for key, value in proof.items())]
        status, body = ask_for_a_task(live, "west", user=None, headers=known)
        assert status == 200 and AcquireTaskResponse.FromString(body).token  # there was one
    finally:
        live.signal("west", signal.SIGCONT, *workers)
    live.end()


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_no_token_is_on_a_command_line(live):
    live.begin("fedavg", rounds=1)
    live.until_training("west", 1)
    live.until("that west works", lambda: bool(live.loading("west")))
    said = [cmdline(pid) for pid in live.deployment.processes["west"].pids()]
    assert any(b"\0do\0" in line for line in said)
    assert not any(b"--token" in line or re.search(rb"[0-9a-f]{32}", line) for line in said)
    live.end()


# --- memory


def flood(live, path, headers, size=MUCH, times=40):
    """So many requests at once; the statuses of those that were answered."""
    north = live.deployment.layout.site("north")
    context = showing_certificate(north) if headers else ssl.create_default_context(cafile=str(north / "ca.crt"))
    body, statuses = bytes(size), []

    def send():
        connection = http.client.HTTPSConnection(live.deployment.layout.address, timeout=PATIENCE, context=context)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/protobuf", **headers})
            statuses.append(connection.getresponse().status)
        except OSError:  # nginx did not wait for the end of it
            statuses.append(0)
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/fleet/pull-messages"])
@pytest.mark.parametrize("knows", [False, True])
def test_a_stranger_cannot_fill_the_servers_memory(live, path, knows):
    """Not even one who has got hold of a site's certificate and key."""
    table = (live.deployment.layout.operator / "keys.conf").read_text()
    headers = {"Flwr-Public-Key": re.search(r'"(.*)" "north";', table)[1]} if knows else {}
    before = resident(live)
    statuses = flood(live, path, headers)
    assert len(statuses) == 40 and set(statuses) <= ({0, 413} if knows else {0, 404})
    assert resident(live) - before < FAIR
    if knows:
        statuses = flood(live, path, headers, 10**4)
        assert set(statuses) <= {400, 401, 503} and resident(live) - before < FAIR


LARGE = """
import sys

if sys.orig_argv[3:4] == ["do"]:
    import numpy as np
    from flwr.app import Array, ArrayRecord

    import personafl.backends.flower.app as app

    honest = app._train

    def train(site, content):
        answer = honest(site, content)
        if content["order"]["round"] == 2:
            answer["up"] = ArrayRecord({"theta": Array(np.random.default_rng(0).random(HUGE // 8))})
        return answer

    app._train = train
    app.client_app = app.make_client_app(app._find_site)
"""


@pytest.fixture
def large_site(live, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(LARGE.replace("HUGE", str(HUGE)))
    live.deployment.stop("west")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        live.deployment.restart_site("west", PATIENCE)
    yield
    live.deployment.stop("west")


def test_an_answer_that_is_far_too_large_is_refused_by_nginx(live, large_site):
    live.begin("fedavg", {"round_timeout": 2 * HURRY}, rounds=3)
    live.until_round(1)
    before = resident(live)
    live.end()
    assert resident(live) - before < FAIR
    assert "413" in (live.deployment.layout.operator / "refused.log").read_text()
    dropped = live.dropped()
    assert list(dropped[2]) == ["west"] and 3 not in dropped
