"""Who decides, comes and goes, and what is on record, with real processes: three sites, and a fourth that is added."""

import json
import re
import ssl
import subprocess
import sys
import tarfile
from datetime import datetime

import numpy as np
import pytest
import tomli_w
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.backends.deploy import accept_request, request_membership, revoke_site
from personafl.backends.deploy.processes import free_ports
from personafl.backends.deploy.rehearsal import JOIN, find_nginx, has_joined
from personafl.backends.deploy.rotation import rotate_orders, rotate_server
from personafl.backends.flower.pins import code_sha256
from personafl.backends.flower.signed_files import verify_file
from personafl.storage import checkpoint
from personafl.storage.chained_log import ChainedLog
from tests.backends.deploy.live import CLASSES, FEATURES, SITES, Live

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed: scripts/nginx.sh"),
]


def record(folder):
    """What is on record, every line compared with its digest."""
    return ChainedLog(folder / "record.jsonl").lines()


@pytest.fixture
def strict_west(live):
    policy = live.deployment.layout.site("west") / "policy.toml"
    before = policy.read_text()
    policy.write_text(tomli_w.dumps({"algorithms": ["ditto"], "outgoing": {"theta": 10**6}}))
    yield
    policy.write_text(before)


def test_a_refusal_by_a_policy_reaches_the_operator_and_is_on_both_records(live, strict_west):
    live.begin("fedavg", rounds=1)
    live.end()
    why = "site west: its policy allows the algorithms ditto, this run has 'fedavg' (policy: algorithms)"
    assert live.dropped() == {1: {"west": why}}
    assert not live.states("west")
    refused = [line for line in record(live.deployment.layout.site("west")) if line["event"] == "refused"]
    assert refused[0]["reason"] == why and refused[0]["algorithm"] == "fedavg"
    operator = record(live.deployment.layout.operator)
    assert [line["reason"] for line in operator if line["event"] == "dropped" and line["asked"] == "train"] == [why]
    # What north sent is what the operator got, by its hash.
    (sent,) = [
        line["sent"]["theta"] for line in record(live.deployment.layout.site("north")) if "trained" in line.values()
    ]
    (got,) = [
        line["got"]["theta"] for line in operator
        if line["event"] == "received" and line["asked"] == "train" and line["site"] == "north"
    ]  # fmt: skip
    assert sent == got and sent["norm"] > 0
    signed = live.deployment.model("north")
    assert verify_file(signed, live.deployment.layout.site("north") / "node.pub") == "north"
    models = live.deployment.run_folder / "models" / "global.safetensors"
    assert verify_file(models, live.deployment.layout.operator / "orders.pub") == "the operator"


@pytest.fixture
def policies(live):
    """Sets what the policies of the sites are; they are as before in the end."""
    files = {name: live.deployment.layout.site(name) / "policy.toml" for name in SITES}
    before = {name: file.read_text() for name, file in files.items()}
    yield lambda **tables: [files[name].write_text(tomli_w.dumps(table)) for name, table in tables.items()]
    for name, file in files.items():
        file.write_text(before[name])


def test_hours_noise_code_rounds_sums_and_sizes_are_the_sites_to_decide(live, policies):
    """Each site refuses for a reason of its own, and the operator reads it."""
    now = datetime.now().hour
    policies(
        north={"hours": [f"{(now + 6) % 24:02}:00-{(now + 18) % 24:02}:00"]},
        south={"least_noise": 4.0},
        west={"code": code_sha256("personafl"), "hours": ["00:00-24:00"], "weights": [], "outgoing": {"theta": 10**6}},
    )
    live.begin("fedavg", rounds=1)
    live.end()
    (dropped,) = live.dropped().values()
    assert set(dropped) == {"north", "south"} and live.states("west")
    assert "it works in the hours" in dropped["north"] and "(policy: hours)" in dropped["north"]
    assert "privacy.noise of at least 4, this run has 0" in dropped["south"]
    policies(north={"secure": True}, south={"outgoing": {"theta": 10}}, west={"most_rounds": 1})
    live.begin("fedavg", rounds=1)
    live.end()
    (dropped,) = live.dropped().values()
    assert "only with secure aggregation, and this run has none (policy: secure)" in dropped["north"]
    assert "theta may leave with at most 10 bytes" in dropped["south"]
    assert "trains in at most 1 rounds in all" in dropped["west"] and "(policy: most_rounds)" in dropped["west"]
    assert not any(live.states(name) for name in SITES)


def test_keys_of_server_and_orders_are_renewed_between_runs(live):
    """Sites notice nothing of the server's; who was not given the new key of orders does not obey it."""
    deployment = live.deployment
    operator, handout = deployment.layout.operator, deployment.layout.folder / "handout" / "orders.pub"
    rotate_server(deployment.layout.folder, deployment.layout.folder.parent / "operator" / "ca.key")
    for name in ("proxy", "superlink"):
        deployment.kill(name)
    deployment.start_superlink()
    deployment.start_proxy()
    rotate_orders(deployment.layout.folder)
    for name in ("north", "south"):
        (deployment.layout.site(name) / "orders.pub").write_text(handout.read_text())
    live.begin("fedavg", rounds=1)  # signed with the old key still
    live.end()
    assert not live.dropped()
    rotate_orders(deployment.layout.folder, finish=True)
    live.begin("fedavg", {"patience": 120.0}, rounds=1)
    live.end()
    (dropped,) = live.dropped().values()
    assert set(dropped) == {"west"} and not live.states("west") and live.states("north") and live.states("south")
    for name in SITES:
        (deployment.layout.site(name) / "orders.pub").write_text(handout.read_text())
    live.begin("fedavg", rounds=1)
    live.end()
    assert not live.dropped() and len((operator / "orders.pub").read_text().splitlines()) == 1


def test_nothing_of_the_operators_app_is_run_at_a_site(live):
    """An operator, or whoever reaches the SuperLink, starts an app with code of its own: sites do not unpack it."""
    app = live.deployment.layout.folder / "app"
    text = (app / "pyproject.toml").read_text()
    proof = live.deployment.layout.folder / "was-run"
    (app / "evil.py").write_text(
        f"open({str(proof)!r}, 'a').write('x')\n"
        "import personafl.backends.flower.app as installed\nclient_app = installed.client_app\n"
    )
    (app / "pyproject.toml").write_text(text.replace("personafl.backends.flower.app:client_app", "evil:client_app"))
    try:
        live.begin("fedavg", rounds=1)
        live.end()
    finally:
        (app / "pyproject.toml").write_text(text)
        (app / "evil.py").unlink()
    assert not live.dropped() and not proof.exists()
    assert not list(live.deployment.layout.folder.glob("sites/*/flower/apps/*"))


def test_who_shows_no_certificate_is_refused_unread(live):
    """Not even with a site's own public key, which is no secret."""
    import http.client

    table = (live.deployment.layout.operator / "keys.conf").read_text()
    key = re.search(r'"(.*)" "north";', table)[1]
    folder = live.deployment.layout.site("west")

    def ask(certificate):
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        if certificate:
            context.load_cert_chain(folder / "node.crt", folder / "runtime" / "node.pem")
        connection = http.client.HTTPSConnection(live.deployment.layout.address, timeout=60, context=context)
        connection.request("POST", "/v1/fleet/pull-messages", b"", {"Flwr-Public-Key": key})
        return connection.getresponse().status

    assert ask(False) == 404
    assert ask(True) == 404  # a true certificate, of another site than the key's


# --- coming and going


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    live = Live(tmp_path_factory.mktemp("members"))
    with live.deployment:
        live.deployment.start()
        yield live


def join_by_request(live, name):
    """As a new site does it, its key made in its own folder; gives its folder."""
    deployment, folder = live.deployment, live.deployment.layout.folder / "elsewhere" / name
    request, fingerprint = request_membership(folder, name)
    authority = deployment.layout.folder.parent / "operator" / "ca.key"
    accepted = accept_request(deployment.layout.folder, request.read_bytes(), authority_key=authority)
    assert accepted.fingerprint == fingerprint
    with tarfile.open(accepted.archive) as archive:
        assert not [member for member in archive.getnames() if "key" in member]
        archive.extractall(folder, filter="data")
    rng = np.random.default_rng(8)
    x = {split: rng.uniform(-1, 1, (24, FEATURES)).astype(np.float32) for split in ("train", "val", "test")}
    arrays = {f"x_{split}": value for split, value in x.items()}
    np.savez(folder / "data.npz", **arrays, **{f"y_{split}": rng.integers(0, CLASSES, 24) for split in x})
    connection = (folder / "connection.env").read_text()
    (folder / "connection.env").write_text(connection.replace("9094", str(free_ports(1)[0])))
    with open(folder / "site.toml", "a") as file:
        file.write("\nleast_samples = 8\n")
    deployment.register(name)
    process = deployment._begin(name, [str(folder / "start.sh")])
    process.wait_until(lambda: has_joined(process), JOIN, "joined")
    return folder


def test_a_site_joins_a_run_by_request_and_another_is_revoked_while_it_goes_on(federation):
    live, deployment = federation, federation.deployment
    everybody = [*SITES, "east"]
    live.begin("fedamp", {"clients": everybody}, rounds=60)
    live.until_round(1)
    assert live.dropped()[1] == {"east": "the operator has no key of it"}
    east = join_by_request(live, "east")
    live.until("that east answers", lambda: "east" not in last_dropped(live))
    # A site that is killed while it writes, again and again, has a whole record.
    deployment.kill("south")
    revoke_site(deployment.layout.folder, "west")
    live.until("that west is out", lambda: last_dropped(live).get("west") == "its key was revoked")
    begun = len(deployment.rounds())
    live.until_round(begun + 2)
    after = [record.get("dropped", {}) for record in deployment.rounds()[begun:]]
    assert all(dropped["west"] == "its key was revoked" for dropped in after)
    deployment.kill("run")
    deployment.kill("superlink")
    state = checkpoint.latest(deployment.run_folder / "checkpoint").tensors
    row = sorted(everybody).index("west")
    assert torch.equal(state["server.models"][row], state["theta0"])  # as if it had never answered
    others = [k for k in range(4) if k != row]
    assert not any(torch.equal(state["server.models"][k], state["theta0"]) for k in others)
    for folder in (deployment.layout.operator, east, *(deployment.layout.site(name) for name in SITES)):
        assert record(folder), folder
    events = [(line["event"], line.get("site")) for line in record(deployment.layout.operator)]
    order = [
        events.index(event)
        for event in (("joined", "west"), ("accepted", "east"), ("joined", "east"), ("revoked", "west"))
    ]
    assert order == sorted(order)
    trained = [line for line in record(east) if line["event"] == "trained"]
    assert trained and set(trained[0]["sent"]) == {"answer", "theta"}
    assert '"west"' not in (deployment.layout.operator / "keys.conf").read_text()


def last_dropped(live):
    records = live.deployment.rounds()
    return records[-1].get("dropped", {}) if records else {}


def test_the_log_is_read_by_people_and_programs_and_a_change_is_named(federation):
    """After the test before it, which has filled it."""
    operator = federation.deployment.layout.operator
    said = personafl("deploy", "log", federation.deployment.layout.folder)
    assert "accepted into the federation: site east" in said.stdout and "revoked: site west" in said.stdout
    lines = personafl("deploy", "log", federation.deployment.layout.folder, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == record(operator)
    file = operator / "record.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"event": "revoked"', b'"event": "ended"', 1))
    said = personafl("deploy", "log", federation.deployment.layout.folder)
    number = 1 + [line["event"] for line in map(json.loads, lines)].index("revoked")
    assert said.returncode == 2 and f"line {number} of record.jsonl is not as it was written" in said.stderr
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))
    assert "lines, record.head knows of" in personafl("deploy", "log", federation.deployment.layout.folder).stderr
    file.write_bytes(whole)


def personafl(*words):
    return subprocess.run([sys.executable, "-m", "personafl", *map(str, words)], capture_output=True, text=True)
