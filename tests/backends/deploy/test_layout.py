"""What `deploy init` writes: certificates and keys that hold, scripts and units that their programs accept."""

import json
import re
import shutil
import ssl
import stat
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

from personafl.algorithms.base import JobInfo
from personafl.algorithms.extras import trained_task
from personafl.backends.deploy import Layout, init_federation
from personafl.backends.deploy.layout import Material, split_address
from personafl.backends.deploy.proxy import FLEET_PATHS, answer_bytes, write_proxy
from personafl.backends.deploy.rehearsal import find_nginx
from personafl.cli import app
from personafl.errors import ConfigError
from personafl.kernels.task import Task
from personafl.models import initialize
from personafl.tasks.classes import cross_entropy
from tests.archetypes import FOR_ANY_MODEL


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return init_federation(tmp_path_factory.mktemp("init") / "clinics", ["north", "south"], "fl.example.org:9443")


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def verifier(authority, host):
    policy = PolicyBuilder().store(Store([certificate(authority)])).time(datetime.now(UTC).replace(tzinfo=None))
    name = x509.IPAddress(host) if not isinstance(host, str) else x509.DNSName(host)
    return policy.build_server_verifier(name)


# --- certificates and keys


def test_the_server_certificate_is_the_authoritys_and_holds_for_the_address(layout):
    server = certificate(layout.operator / "server.crt")
    for host in ("fl.example.org", "localhost"):
        chain = verifier(layout.operator / "ca.crt", host).verify(server, [])
        assert chain[-1] == certificate(layout.operator / "ca.crt")
    with pytest.raises(VerificationError):
        verifier(layout.operator / "ca.crt", "elsewhere.example.org").verify(server, [])


def test_another_authority_is_not_trusted(layout, tmp_path):
    other = init_federation(tmp_path / "other", ["north"], "fl.example.org:9443")
    with pytest.raises(VerificationError):
        verifier(other.operator / "ca.crt", "fl.example.org").verify(certificate(layout.operator / "server.crt"), [])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_accepts_the_chain_strictly(layout):
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "fl.example.org"]
    done = subprocess.run(
        [*command, "-CAfile", layout.operator / "ca.crt", layout.operator / "server.crt"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_certificates_hold_for_a_sensible_time(layout):
    now = datetime.now(UTC)
    server, authority = certificate(layout.operator / "server.crt"), certificate(layout.operator / "ca.crt")
    assert server.not_valid_before_utc < now < server.not_valid_after_utc < authority.not_valid_after_utc
    assert timedelta(days=365) < server.not_valid_after_utc - now <= timedelta(days=825)


def test_private_keys_are_the_owners_alone_and_the_authoritys_stays_with_the_operator(layout):
    private = {path for path in layout.folder.rglob("*.key")}
    assert {path.relative_to(layout.folder).as_posix() for path in private} == {
        "operator/ca.key", "operator/orders.key", "operator/server.key", "sites/north/node.key", "sites/south/node.key",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_a_site_has_its_own_key_pair_which_the_operator_knows(layout):
    keys = {}
    for name in layout.sites:
        key = serialization.load_ssh_private_key((layout.site(name) / "node.key").read_bytes(), None)
        public = serialization.load_ssh_public_key((layout.operator / "keys" / f"{name}.pub").read_bytes())
        assert key.public_key() == public and key.curve.name == "secp384r1"
        keys[name] = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert len(set(keys.values())) == 2
    assert (layout.site("north") / "ca.crt").read_bytes() == (layout.operator / "ca.crt").read_bytes()


def test_python_trusts_the_certificate_in_its_strict_mode(layout):
    context = ssl.create_default_context(cafile=str(layout.operator / "ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1


# --- files


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration(layout):
    command = [find_nginx(), "-t", "-e", "stderr", "-p", layout.operator, "-c", layout.operator / "nginx.conf"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nginx_passes_on_what_a_registered_site_asks_flower_for(layout):
    """Flower's own list of what sites ask for, less what makes a site register itself."""
    from flwr.superlink.routers.fleet.router import router

    known = {route.path for route in router.routes}
    assert set(FLEET_PATHS) == known - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    text = (layout.operator / "paths.conf").read_text()
    assert text.count("proxy_pass") == len(FLEET_PATHS) and "control" not in text
    rest = (layout.operator / "nginx.conf").read_text().partition("http {")[2]
    assert "proxy_pass" not in rest and "control" not in rest and "include paths.conf" in rest


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(layout, tmp_path):
    units = [*layout.operator.glob("*.service"), layout.site("north") / "personafl-site.service"]
    assert len(units) == 3
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    # Of the other units of this machine there may be complaints, which are not ours.
    assert not [line for line in done.stderr.splitlines() if "personafl" in line and "/bin/sh" not in line], done.stderr


def test_a_site_is_restarted_later_than_flower_lets_it_in_again(layout):
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE

    unit = (layout.site("north") / "personafl-site.service").read_text()
    wait = int(unit.partition("RestartSec=")[2].split()[0])
    assert wait > HEARTBEAT_DEFAULT_INTERVAL * HEARTBEAT_PATIENCE and "Restart=always" in unit


def test_scripts_are_programs_that_a_shell_can_read(layout):
    scripts = [*layout.folder.rglob("*.sh")]
    assert len(scripts) == 11
    for script in scripts:
        assert subprocess.run(["sh", "-n", script]).returncode == 0
        assert script.name == "environment.sh" or "umask 077" in script.read_text()
        assert script.name == "environment.sh" or stat.S_IMODE(script.stat().st_mode) & 0o100
        assert (
            "FLWR_TELEMETRY_ENABLED=0" in script.read_text()
            or "./environment.sh" in script.read_text()
            or (script.name in ("start-proxy.sh", "refresh-proxy.sh", "pack-sites.sh"))
        )


def test_nothing_is_left_to_fill_in(layout):
    texts = [path.read_text() for path in layout.folder.rglob("*") if path.is_file()]
    assert not any("{{" in text for text in texts)


def test_configs_are_what_personafl_and_flower_read(layout):
    from flwr.cli.config_utils import load_and_validate

    from personafl.backends.flower.site_data import read_site

    site = read_site(layout.site("south") / "site.toml")
    assert site.id == "south" and site.folder == str(layout.site("south"))
    config = tomllib.loads((layout.folder / "federation.toml").read_text())
    assert config["federation"]["clients"] == ["north", "south"]
    _, warnings = load_and_validate(layout.folder / "app" / "pyproject.toml")
    assert warnings == []


def test_only_what_was_asked_for_listens_beyond_loopback(layout, tmp_path):
    assert layout.listen == "9443" and layout.private.startswith("127.0.0.1:")
    home = init_federation(tmp_path / "home")
    assert home.listen == "127.0.0.1:9092"
    for script in home.folder.rglob("*.sh"):
        assert "0.0.0.0" not in script.read_text()


def test_archives_for_sites_hold_their_folder_and_the_newest_config(layout, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(layout.folder, folder)
    (folder / "federation.toml").write_text("rounds = 7\n")
    assert subprocess.run([folder / "operator" / "pack-sites.sh"], capture_output=True).returncode == 0
    subprocess.run(["tar", "-xzf", folder / "handout" / "north.tar.gz", "-C", tmp_path], check=True)
    assert (tmp_path / "north" / "federation.toml").read_text() == "rounds = 7\n"
    assert stat.S_IMODE((tmp_path / "north" / "node.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "handout" / "north.tar.gz").stat().st_mode) == 0o600


# --- what nginx lets through


@pytest.mark.parametrize("name", FOR_ANY_MODEL)
def test_an_answer_of_every_algorithm_gets_through(layout, name):
    from personafl.backends.flower.app import read_operator
    from personafl.backends.flower.job import upload_of
    from personafl.config import parse

    config = layout.folder / "federation.toml"
    described, settings = read_operator(config)
    algorithm = parse({"algorithm": name}).algorithm
    task = trained_task(algorithm, Task(initialize(described.model, settings.input_shape, settings.classes, 0)))
    layers = tuple(zip(task.names, task.sizes, strict=True))
    algorithm = algorithm.prepare(JobInfo(layers, 2, described.local, True, objective=cross_entropy))
    sent = algorithm.send(algorithm.new_server(task.theta0, 2), torch.zeros(1, dtype=torch.int64))
    up = upload_of(algorithm, described.local, algorithm.new_client(task.theta0, sent.one(0)), sent.one(0))
    takes = sum(value.numel() * value.element_size() for value in up.values())
    assert takes <= answer_bytes(config) - 2**14
    most = re.search(r"push-object \{ client_max_body_size (\d+);", (layout.operator / "paths.conf").read_text())
    assert takes < int(most[1]) < 10 * (takes or 10**6)


def test_a_larger_model_gets_through_when_nginx_is_told(layout, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(layout.folder, folder)
    before = (folder / "operator" / "paths.conf").read_text()
    config = folder / "federation.toml"
    assert not write_proxy(folder / "operator", config)
    config.write_text(config.read_text().replace('name = "mlp"', 'name = "mlp"\nhidden = [4000]'))
    assert write_proxy(folder / "operator", config) and (folder / "operator" / "paths.conf").read_text() != before
    (folder / "operator" / "keys" / "late.pub").write_bytes((folder / "operator" / "keys" / "north.pub").read_bytes())
    assert write_proxy(folder / "operator", config)


def test_a_federation_of_an_earlier_version_is_told_what_to_do(layout, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(layout.folder, folder)
    (folder / "operator" / "orders.key").unlink()
    with pytest.raises(ConfigError, match=r"no operator/orders.key.*make it anew with personafl deploy init"):
        Material.read(Layout.read(folder))


def test_a_rehearsal_has_the_word_vectors_of_its_federation(tmp_path):
    import tomli_w

    from personafl.backends.deploy import Deployment
    from personafl.backends.deploy.rehearsal_policy import allowing
    from personafl.backends.flower.site_data import read_site
    from personafl.files import checksum

    folder, data = tmp_path / "federation", tmp_path / "data"
    init_federation(folder, ["north", "south"])
    np.save(folder / "vectors.npy", np.eye(4, 3, -1, dtype=np.float32))
    data.mkdir()
    for name in ("north", "south"):
        np.savez(data / f"{name}.npz", x=np.arange(240).reshape(40, 6) % 4, y=np.arange(40) % 2)
    pinned = checksum(folder / "vectors.npy")
    tables = {"model": {"name": "lstm"}, "vectors": {"path": "vectors.npy", "sha256": pinned}}
    (folder / "federation.toml").write_text(tomli_w.dumps({**tables, "federation": {"input_shape": [6], "classes": 2}}))
    layout = Deployment(folder, data=data, proxy=False).layout
    for name in layout.sites:
        vectors = read_site(layout.site(name) / "site.toml").vectors
        assert vectors is not None and vectors.load(pinned).shape == (4, 3)
    assert allowing(layout.folder / "federation.toml")["weights"] == [pinned]


def test_the_layout_is_read_back(layout):
    assert Layout.read(layout.folder) == layout


# --- mistakes


def test_a_folder_that_holds_something_is_never_written_to(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not an empty folder"):
        init_federation(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("address", ["nowhere", "host:0", "host:70000", "https://host:1", "a b:1", ":1", "host:1;"])
def test_an_address_is_host_and_port(tmp_path, address):
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        init_federation(tmp_path, address=address)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (["a/b"], "made of letters"),
        (["..", "b"], "made of letters"),
        (["a", "A"], "only once"),
        (["superlink"], "taken"),
    ],
)
def test_sites_have_plain_names(tmp_path, sites, message):
    with pytest.raises(ConfigError, match=message):
        init_federation(tmp_path, sites)


def test_an_address_of_the_sixth_version(tmp_path):
    import ipaddress

    layout = init_federation(tmp_path, ["a"], "[2001:db8::7]:9092")
    server = certificate(layout.operator / "server.crt")
    verifier(layout.operator / "ca.crt", ipaddress.ip_address("2001:db8::7")).verify(server, [])
    assert split_address(layout.address) == ("2001:db8::7", 9092)


def test_the_command_says_what_to_do_next(tmp_path):
    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "f"), "--sites", "a, b"])
    assert done.exit_code == 0 and "personafl deploy up" in done.stdout
    told = json.loads(CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "g"), "--json"]).stdout)
    assert told["sites"] == ["site-1", "site-2", "site-3"]
