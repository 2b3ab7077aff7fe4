"""`site check`: what keeps a site from joining is found before it joins, and nothing is sent."""

import json
import os
import re
import socket
import ssl
import threading
import time
import tomllib

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from typer.testing import CliRunner

from personafl.backends.deploy import check_site, init_federation
from personafl.backends.flower.ledger import Entry, Ledger
from personafl.backends.flower.site_data import SiteSettings
from personafl.cli import app

RANDOM = np.random.default_rng(0)


@pytest.fixture
def site(tmp_path):
    """A site's folder, with data that fits."""
    folder = init_federation(tmp_path / "federation", ["north"]).site("north")
    bring(folder)
    return folder


def bring(folder, **changed):
    arrays = {"x": RANDOM.random((60, 64), np.float32), "y": np.arange(60) % 10}
    arrays |= changed
    np.savez(folder / "data.npz", **{name: value for name, value in arrays.items() if value is not None})


def findings(folder, connect=False):
    return {finding.what: finding for finding in check_site(folder / "site.toml", connect)}


def bad(folder, connect=False):
    return {what: finding.about for what, finding in findings(folder, connect).items() if finding.state == "bad"}


def test_a_site_that_is_fit(site):
    found = findings(site)
    assert not bad(site)
    assert found["data"].about.startswith("60 samples of shape (64,)")
    assert found["splits"].about == "42 for training, 6 for validation, 12 for testing"
    assert "0: 6, 1: 6" in found["labels"].about


def test_the_limits_and_what_was_told_are_shown(site):
    found = findings(site)
    assert "batches of at least 8 samples, 1 steps, 16 different samples" in found["limits"].about
    assert found["privacy"].about == "metrics are reported, which ε does not cover"
    assert found["ledger"].about == "0 updates and 0 times metrics were reported, in 0 runs"
    ledger = Ledger(site, "north")
    ledger.add(Entry("a", 1, "update", "ditto", 1.0, 4.0, 1e-5))
    ledger.add(Entry("a", 1, "metrics", "ditto", 1.0, 4.0, 1e-5))
    assert found["ledger"].state == "good"
    assert (
        findings(site)["ledger"].about
        == "1 updates and 1 times metrics were reported, in 1 runs; ε = 1.993 at δ = 1e-05"
    )
    settings = (site / "site.toml").read_text()
    (site / "site.toml").write_text(settings + "\nmost_epsilon = 2.5\n")
    assert findings(site)["privacy"].about == "ε of at most 2.5 at δ = 1e-05; no metrics are reported"
    assert bad(site)["ledger"].endswith(
        "of most_epsilon = 2.5, so that nothing is left of most_epsilon for another one"
    )
    (site / "site.toml").write_text(settings + "\nmost_epsilon = 5.0\nmetrics = true\n")
    assert findings(site)["privacy"].state == "warning" and not bad(site)
    ledger.path.write_bytes(b"")
    assert "cannot trust the ledger" in bad(site)["ledger"]


def test_a_site_with_too_few_samples_is_told(site):
    bring(site, x=RANDOM.random((20, 64), np.float32), y=np.arange(20) % 10)
    assert "with fewer than least_samples = 16 for training no answer leaves this site" in bad(site)["splits"]


OFF = ("least_together", "least_noise", "most_epsilon")
"""Limits that a site has only where it says so."""


def test_the_template_says_the_limits_that_hold(site):
    """Each line about a limit can be uncommented, and those that hold anyway change nothing."""
    said = [line.removeprefix("# ") for line in (site / "site.toml").read_text().splitlines() if " = " in line]
    there = tomllib.loads("\n".join(line for line in said if re.match(r"\w+ = ", line)))
    defaults = SiteSettings("a", "b", "c")
    assert {key for key in there if key.startswith(("least_", "most_"))} == {
        key for key in vars(defaults) if key.startswith(("least_", "most_"))
    }
    always = [key for key in there if key.startswith(("least_", "most_")) and key not in OFF]
    assert {key: there[key] for key in [*always, "delta"]} == {
        key: getattr(defaults, key) for key in [*always, "delta"]
    }


@pytest.mark.parametrize(
    ("arrays", "what", "message"),
    [
        ({"x": np.full((60, 64), np.nan, np.float32)}, "data", "NaN or infinite"),
        ({"x": np.zeros((50, 64), np.float32)}, "data", "50"),
        ({"y": None}, "data", "expected x and y"),
        ({"y": np.array(["a"] * 60, object)}, "data", "data.npz"),
        ({"y": np.arange(60) - 1}, "data", "count from 0"),
        ({"x": np.zeros((60, 8, 8), np.float32)}, "fits federation.toml", "shape (8, 8), expected (64,)"),
        ({"y": np.arange(60)}, "fits federation.toml", "go up to class 59"),
        ({"y": np.linspace(0, 1, 60, dtype=np.float32)}, "fits federation.toml", "are not classes"),
    ],
)
def test_data_that_does_not_fit_is_named(site, arrays, what, message):
    bring(site, **arrays)
    assert message in bad(site)[what]


def test_data_that_is_no_archive_is_named(site):
    (site / "data.npz").write_bytes(b"not an archive")
    assert "data.npz" in bad(site)["data"]
    (site / "data.npz").unlink()
    assert "there is no data" in bad(site)["data"]


def test_a_key_that_others_can_read(site):
    (site / "node.key").chmod(0o640)
    assert bad(site) == {"key": "others can read node.key: chmod 600 node.key"}


def test_an_old_key_is_a_warning(site):
    assert findings(site)["age of the key"].state == "good"
    then = time.time() - 900 * 86_400
    os.utime(site / "node.key", (then, then))
    assert "900 days old: renew it, personafl site request --new-key" in findings(site)["age of the key"].about
    assert not bad(site)


def test_files_that_others_can_read_are_named(site):
    assert findings(site)["files"].state == "good"
    site.chmod(0o755)
    found = findings(site)["files"]
    assert found.state == "warning" and "others on this machine can read data.npz" in found.about
    (site / "data.npz").chmod(0o600)
    assert findings(site)["files"].state == "good"


def test_a_site_that_obeys_anybody_is_told(site):
    assert "orders.pub" in findings(site)["orders"].about
    (site / "orders.pub").unlink()
    assert "orders.pub cannot be read" in bad(site)["orders"]
    text = (site / "site.toml").read_text().partition("# Nothing is done")[0]
    (site / "site.toml").write_text(text)
    assert findings(site)["orders"].state == "warning"


def test_a_key_of_somebody_else(site, tmp_path):
    other = init_federation(tmp_path / "other", ["north"]).site("north")
    (site / "node.key").write_bytes((other / "node.key").read_bytes())
    assert "does not belong to node.pub" in bad(site)["key"]
    (site / "node.key").unlink()
    assert "there is no node.key" in bad(site)["key"]


def test_a_certificate_that_is_none(site):
    (site / "ca.crt").write_text("nothing")
    assert "is not a certificate" in bad(site)["certificate"]
    (site / "ca.crt").unlink()
    assert "cannot read ca.crt" in bad(site)["certificate"]


def test_a_site_file_with_a_mistake(site):
    (site / "site.toml").write_text('id = "north"\ndata = "data.npz"\nfoldr = "."\n')
    assert "did you mean 'folder'" in bad(site)["site"]


def test_a_folder_that_is_not_there(site):
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace('folder = "."', 'folder = "elsewhere"'))
    assert "cannot write to" in bad(site)["folder"]


def test_one_class_alone_and_no_test_samples_are_warnings(site):
    np.savez(site / "data.npz", x_train=np.zeros((16, 64), np.float32), y_train=np.ones(16, np.int64))
    found = findings(site)
    assert found["labels"].state == found["splits"].state == "warning" and not bad(site)


def test_the_folder_is_enough_and_so_is_being_in_it(site, monkeypatch):
    assert CliRunner().invoke(app, ["site", "check", str(site)]).exit_code == 0
    monkeypatch.chdir(site)
    assert CliRunner().invoke(app, ["site", "check"]).exit_code == 0


def test_the_command_has_an_exit_code_and_json(site):
    done = CliRunner().invoke(app, ["site", "check", str(site / "site.toml")])
    assert done.exit_code == 0 and "north" in done.stdout
    (site / "node.key").unlink()
    done = CliRunner().invoke(app, ["site", "check", str(site / "site.toml"), "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 1 and told["fit"] is False
    assert [f["what"] for f in told["findings"] if f["state"] == "bad"] == ["orders", "key"]


# --- the connection


class Listener:
    """A server with the federation's certificate that keeps what it is sent."""

    def __init__(self, operator):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(operator / "server.crt", operator / "server.key")
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.received = []
        self.thread = threading.Thread(target=self.serve, args=(context,), daemon=True)
        self.thread.start()

    def serve(self, context):
        plain, _ = self.socket.accept()
        try:
            with context.wrap_socket(plain, server_side=True) as tls:
                self.received.append(tls.recv(1000))
        except ssl.SSLError as error:
            self.received.append(error)

    def close(self):
        self.thread.join()
        self.socket.close()


def point_to(site, port):
    (site / "connection.env").write_text(f"SUPERLINK=127.0.0.1:{port}\nRUNTIME_PORT=9094\n")


def test_a_connection_is_made_and_nothing_is_sent(site):
    listener = Listener(site.parent.parent / "operator")
    point_to(site, listener.port)
    assert findings(site, connect=True)["connection"].state == "good"
    listener.close()
    assert listener.received == [b""]


def test_another_certificate_is_not_trusted(site, tmp_path):
    listener = Listener(init_federation(tmp_path / "other").operator)
    point_to(site, listener.port)
    assert "is not trusted" in bad(site, connect=True)["connection"]
    listener.close()


def test_nobody_is_there(site):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        point_to(site, unused.getsockname()[1])
        assert "cannot reach the federation" in bad(site, connect=True)["connection"]


def test_without_asking_for_it_nothing_connects(site, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setattr(socket, "create_connection", None)
    assert "connection" not in findings(site)


def test_the_clock_is_judged_without_a_network(site, monkeypatch, tmp_path):
    program = tmp_path / "timedatectl"
    program.write_text("#!/bin/sh\necho no\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert findings(site)["clock"].state == "warning" and "not synchronized" in findings(site)["clock"].about
    program.write_text("#!/bin/sh\necho yes\n")
    assert findings(site)["clock"].state == "good"
    assert time.strftime("%Y-%m-%d", time.gmtime()) in findings(site)["clock"].about
