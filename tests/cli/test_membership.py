"""The commands by which sites come and go and by which one sees what was done, as people and programs use them."""

import json
import tarfile

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed")

from personafl.backends.deploy import membership
from personafl.backends.flower.signed_files import sign_models
from personafl.cli import app
from personafl.storage.chained_log import ChainedLog
from tests.backends.flower import problem
from tests.backends.flower.grid import MemoryGrid, sites_of


def said(*words, code=0):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def told(*words):
    return json.loads(said(*words, "--json"))


def test_a_site_comes_and_goes_by_commands(tmp_path, monkeypatch):
    monkeypatch.setattr(membership, "tell_servers", lambda operator, *gone: [])  # no server runs here
    clinics, north = tmp_path / "clinics", tmp_path / "north"
    said("deploy", "init", clinics, "--sites", "north,south", "--by-request")
    asked = told("site", "request", north, "north")
    accepted = told("deploy", "accept", clinics, asked["request"])
    assert accepted["fingerprint"] == asked["fingerprint"] and accepted["site"] == "north"
    with tarfile.open(accepted["archive"]) as archive:
        archive.extractall(north, filter="data")
    checked = told("deploy", "check", clinics)
    assert checked["fit"] and {found["what"] for found in checked["findings"]} == {
        "authority", "server", "site north", "key of orders", "key of north",
    }  # fmt: skip
    assert "key of orders" in said("deploy", "check", clinics)
    assert "server.crt are new" in said("deploy", "rotate", clinics, "server")
    assert "give every site" in told("deploy", "rotate", clinics, "orders")["said"][0]
    assert "signed with the new key" in said("deploy", "rotate", clinics, "orders", "--finish")
    again = told("site", "request", north, "north", "--new-key")
    assert again["fingerprint"] != asked["fingerprint"]
    assert said("deploy", "accept", clinics, again["request"], code=1) == ""
    assert told("deploy", "accept", clinics, again["request"], "--replace")["fingerprint"] == again["fingerprint"]
    assert "its key counts no more" in told("deploy", "revoke", clinics, "north")["said"][0]
    lines = [json.loads(line) for line in said("deploy", "log", clinics, "--json").splitlines()]
    assert lines == ChainedLog(clinics / "operator" / "record.jsonl").lines()
    assert [line["event"] for line in lines] == ["accepted", *["rotated"] * 3, "accepted", "revoked"]
    assert "revoked: site north" in said("deploy", "log", clinics)


def test_a_site_sees_what_was_sent_and_whose_its_model_is(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path, problem.federation()))
    problem.flower(tmp_path / "operator", grid, "fedavg", rounds=1)
    site = tmp_path / "site-2"
    lines = [json.loads(line) for line in said("site", "log", site, "--json").splitlines()]
    assert lines == ChainedLog(site / "record.jsonl").lines()
    theta = lines[1]["sent"]["theta"]
    assert set(theta) == {"shape", "bytes", "norm", "sha256"}
    shown = said("site", "log", site).splitlines()
    assert len(shown) == 3
    assert f"theta ({theta['bytes']} bytes, norm {theta['norm']:g}, {theta['sha256'][:12]}…)" in shown[1]
    told("site", "request", site, "site-2")
    sign_models(site / "models", site / "node.key", "site-2")
    model = site / "models" / "personal.safetensors"
    assert told("site", "verify", model, "--key", site / "node.pub") == {"model": str(model), "by": "site-2"}
    model.write_bytes(model.read_bytes() + b"\0")
    done = CliRunner().invoke(app, ["site", "verify", str(model), "--key", str(site / "node.pub")])
    assert "is not as it was when site-2 signed it" in str(done.exception)


def test_a_record_that_was_changed_is_named(tmp_path):
    grid = MemoryGrid(sites_of(tmp_path, problem.federation()))
    problem.flower(tmp_path / "operator", grid, "fedavg", rounds=1)
    record = tmp_path / "site-2" / "record.jsonl"
    record.write_bytes(record.read_bytes().replace(b'"trained"', b'"refused"', 1))
    done = CliRunner().invoke(app, ["site", "log", str(tmp_path / "site-2")])
    assert "line 2 of record.jsonl is not as it was written" in str(done.exception)
