"""How sites come and go: requests, certificates, revoked keys, and renewed ones."""

import json
import os
import tarfile
import tomllib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ConfigRecord, RecordDict

from personafl.backends.deploy import Layout, accept_request, init_federation, request_membership, revoke_site
from personafl.backends.deploy.certificates import make_request, read_request
from personafl.backends.deploy.expiry import certificate_finding, operator_findings
from personafl.backends.deploy.keys import key_fingerprint
from personafl.backends.deploy.rotation import rotate_orders, rotate_server
from personafl.backends.flower.signing import OperatorSeal, SiteSeal
from personafl.errors import ConfigError
from personafl.storage.chained_log import ChainedLog


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "clinics"
    init_federation(folder, ["north", "south"], "fl.example.org:9092", by_request=True)
    return folder


@pytest.fixture
def clinics(template, tmp_path):
    import shutil

    shutil.copytree(template, tmp_path / "clinics")
    return tmp_path / "clinics"


def asked(tmp_path, name="north", **more):
    return request_membership(tmp_path / "at" / name, name, **more)[0].read_bytes()


def test_sites_that_make_their_own_keys_have_nothing_at_the_operator(clinics):
    assert not list((clinics / "sites").iterdir()) and not list((clinics / "operator" / "keys").iterdir())
    assert tomllib.loads((clinics / "federation.toml").read_text())["federation"]["clients"] == ["north", "south"]


def test_a_request_gives_a_certificate_for_the_sites_own_key_and_no_key_travels(clinics, tmp_path):
    request, fingerprint = request_membership(tmp_path / "at" / "north", "north")
    accepted = accept_request(clinics, request.read_bytes())
    assert accepted.fingerprint == fingerprint == key_fingerprint((tmp_path / "at/north/node.pub").read_bytes())
    private = (tmp_path / "at/north/node.key").read_bytes().splitlines()[-4]
    assert not [path for path in clinics.rglob("*") if path.is_file() and private in path.read_bytes()]
    with tarfile.open(accepted.archive) as archive:
        names = archive.getnames()
        certificate = x509.load_pem_x509_certificate(archive.extractfile("node.crt").read())
    assert {"site.toml", "policy.toml", "ca.crt", "orders.pub", "start.sh"} <= set(names) and "node.key" not in names
    assert certificate.subject.rfc4514_string() == "CN=north"
    authority = x509.load_pem_x509_certificate((clinics / "operator" / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    (line,) = ChainedLog(clinics / "operator" / "record.jsonl").lines()
    assert (line["event"], line["site"], line["key"]) == ("accepted", "north", fingerprint)


def test_a_site_that_nobody_has_named_is_added_to_the_config(clinics, tmp_path):
    before = tomllib.loads((clinics / "federation.toml").read_text())
    accept_request(clinics, asked(tmp_path, "east"))
    after = tomllib.loads((clinics / "federation.toml").read_text())
    assert after["federation"]["clients"] == ["north", "south", "east"]
    before["federation"]["clients"].append("east")
    assert after == before and Layout.read(clinics).sites == ("north", "south", "east")


def test_another_key_for_a_site_needs_a_word_of_the_operator(clinics, tmp_path):
    first = asked(tmp_path)
    accept_request(clinics, first)
    accept_request(clinics, first)  # the same key: another certificate
    other = asked(tmp_path, new_key=True)
    with pytest.raises(ConfigError, match=r"site north has another key here: .* SHA256:.* --replace"):
        accept_request(clinics, other)
    archive = accept_request(clinics, other, replace_key=True).archive
    with tarfile.open(archive) as found:
        assert found.getnames() == ["ca.crt", "node.crt", "orders.pub"]  # its settings stay
    with pytest.raises(ConfigError, match="was revoked"):
        accept_request(clinics, first)


def test_requests_that_are_none_are_refused(clinics, tmp_path):
    good = asked(tmp_path)
    for bad in (b"", b"hello", good.replace(b"M", b"N", 3), b"\xff\x00"):
        with pytest.raises(ConfigError, match="this is no request of a site"):
            read_request(bad)
    for name in ("../x", "superlink", "a b", "a:b"):
        with pytest.raises(ConfigError, match="site "):
            accept_request(clinics, make_request(name, ec.generate_private_key(ec.SECP384R1())))
    accept_request(clinics, good)
    from personafl.backends.flower.signing import read_private

    stolen = make_request("south", read_private(tmp_path / "at/north/node.key"))
    with pytest.raises(ConfigError, match="is that of site north"):
        accept_request(clinics, stolen)


def test_without_the_authoritys_key_nobody_is_accepted(clinics, tmp_path):
    key = clinics / "operator" / "ca.key"
    key.rename(tmp_path / "safe.key")
    with pytest.raises(ConfigError, match=r"cannot read the authority's key .*--ca-key"):
        accept_request(clinics, asked(tmp_path))
    assert not (clinics / "operator" / "keys" / "north.pub").exists()
    assert accept_request(clinics, asked(tmp_path), authority_key=tmp_path / "safe.key").name == "north"


# --- going


@pytest.fixture
def quiet(monkeypatch):
    """No servers to tell: nothing runs."""
    monkeypatch.setattr("personafl.backends.deploy.membership.tell_servers", lambda operator, *gone: [])


def test_a_revoked_site_is_known_no_more_and_not_forgotten(clinics, tmp_path, quiet):
    for name in ("north", "south"):
        accept_request(clinics, asked(tmp_path, name))
    seal = OperatorSeal(clinics / "operator")
    assert seal.knows("north") and not seal.revoked("north")
    revoke_site(clinics, "north")
    assert not seal.knows("north") and seal.revoked("north") and seal.knows("south")
    assert tomllib.loads((clinics / "federation.toml").read_text())["federation"]["clients"] == ["south"]
    assert Layout.read(clinics).sites == ("south",)
    with pytest.raises(ConfigError, match=r"site 'north' has no key in .*: there are south"):
        revoke_site(clinics, "north")
    with pytest.raises(ConfigError, match=r"has no key in"):
        revoke_site(clinics, "../keys/south")
    accept_request(clinics, asked(tmp_path, new_key=True))
    assert seal.knows("north") and not seal.revoked("north")


@pytest.mark.slow
def test_where_no_server_runs_revoking_says_so(clinics, tmp_path):
    accept_request(clinics, asked(tmp_path))
    said = revoke_site(clinics, "north")
    assert "its key counts no more" in said[0] and "the SuperLink at 127.0.0.1:9093 was not told" in said[-1]
    assert "north" not in (clinics / "operator" / "keys.conf").read_text()


def test_a_key_that_is_gone_is_gone_from_nginx_even_if_nothing_can_be_trained(
    clinics, tmp_path, quiet, monkeypatch, capsys
):
    from personafl.backends.deploy.proxy import main

    for name in ("north", "south"):
        accept_request(clinics, asked(tmp_path, name))
    revoke_site(clinics, "north")  # and min_answers = 2 is more than there are sites
    monkeypatch.setattr("sys.argv", ["", str(clinics / "operator")])
    with pytest.raises(SystemExit, match=r"as federation.toml is now: federation.min_answers"):
        main()
    assert capsys.readouterr().out == "changed\n"
    table = (clinics / "operator" / "keys.conf").read_text()
    assert '"south"' in table and '"north"' not in table


# --- renewing


def order(clinics, name, number):
    content = RecordDict({"order": ConfigRecord({"n": number})})
    OperatorSeal(clinics / "operator").sign(content, "train", name, "a1")
    return content


def test_the_key_of_orders_is_renewed_with_nobody_locked_out(clinics, tmp_path):
    operator, site = clinics / "operator", tmp_path / "at" / "north"
    asked(tmp_path)
    old, former = site / "orders.pub", (operator / "orders.key").read_bytes()

    def give():
        old.write_text((clinics / "handout" / "orders.pub").read_text())

    def obeys(number):
        SiteSeal("north", site, old, site / "node.key").check(order(clinics, "north", number), "train", 1)

    old.write_text((operator / "orders.pub").read_text())
    obeys(1)
    rotate_orders(clinics)
    obeys(2)  # signed with the old key, and known by it
    give()
    obeys(3)
    rotate_orders(clinics, finish=True)
    obeys(4)  # signed with the new one, which this site knows already
    give()
    obeys(5)
    assert len(old.read_text().splitlines()) == 1
    with pytest.raises(ConfigError, match="begin without --finish"):
        rotate_orders(clinics, finish=True)
    (operator / "orders.key").write_bytes(former)
    with pytest.raises(ConfigError, match="has not signed"):  # whoever still has the old key
        obeys(6)


def test_a_site_that_was_not_told_of_the_new_key_does_not_obey_it(clinics, tmp_path):
    asked(tmp_path)
    site = tmp_path / "at" / "north"
    (site / "orders.pub").write_text((clinics / "operator" / "orders.pub").read_text())
    rotate_orders(clinics)
    with pytest.raises(ConfigError, match="is waiting already"):
        rotate_orders(clinics)
    rotate_orders(clinics, finish=True)
    with pytest.raises(ConfigError, match="has not signed"):
        SiteSeal("north", site, site / "orders.pub", site / "node.key").check(order(clinics, "north", 1), "train", 1)


def test_the_servers_certificate_is_renewed_for_the_same_authority(clinics):
    operator = clinics / "operator"
    before = (operator / "server.crt").read_bytes()
    rotate_server(clinics)
    after = x509.load_pem_x509_certificate((operator / "server.crt").read_bytes())
    after.verify_directly_issued_by(x509.load_pem_x509_certificate((operator / "ca.crt").read_bytes()))
    assert (operator / "server.crt").read_bytes() != before
    names = after.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)


def test_what_ends_soon_is_said_a_month_before(clinics, tmp_path):
    accept_request(clinics, asked(tmp_path))
    findings = {finding.what: finding.state for finding in operator_findings(clinics / "operator")}
    whose = ("authority", "server", "site north", "key of orders", "key of north")
    assert findings == dict.fromkeys(whose, "good")
    soon = datetime.now(UTC) + timedelta(days=825 - 20)
    later = {finding.what: finding for finding in operator_findings(clinics / "operator", soon)}
    assert later["authority"].state == "good" and later["server"].state == later["site north"].state == "warning"
    assert "19 days, renew it" in later["site north"].about
    assert certificate_finding(clinics / "operator/server.crt", now=soon + timedelta(days=30)).state == "bad"


def test_keys_are_watched_by_their_age(clinics, tmp_path):
    """A certificate that is renewed for the same key makes it no younger."""
    accept_request(clinics, asked(tmp_path))
    operator = clinics / "operator"
    old = datetime.now(UTC) - timedelta(days=800)
    for path in (operator / "orders.key", operator / "keys" / "north.pub"):
        os.utime(path, (old.timestamp(), old.timestamp()))
    accept_request(clinics, asked(tmp_path))
    found = {finding.what: finding for finding in operator_findings(operator)}
    assert found["site north"].state == "good" and found["key of north"].state == "warning"
    assert "800 days old: renew it, at the site: personafl site request --new-key" in found["key of north"].about
    assert found["key of orders"].about == (
        f"orders.key is of {old:%Y-%m-%d}, 800 days old: renew it, personafl deploy rotate orders"
    )
    rotate_orders(clinics)
    rotate_orders(clinics, finish=True)
    accept_request(clinics, asked(tmp_path, new_key=True), replace_key=True)
    assert all(finding.state == "good" for finding in operator_findings(operator))


def test_start_run_warns(clinics, capsys, monkeypatch):
    from personafl.backends.deploy import expiry

    monkeypatch.setattr("sys.argv", ["", str(clinics / "operator")])
    monkeypatch.setattr(expiry, "SOON", 900)
    expiry.main()
    assert "warning: server: server.crt is valid until" in (said := capsys.readouterr().err)
    assert "warning: key of orders: orders.key is of" in said


def test_the_record_has_who_came_and_went(clinics, tmp_path, quiet):
    accept_request(clinics, asked(tmp_path))
    revoke_site(clinics, "north")
    rotate_server(clinics)
    lines = (clinics / "operator" / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["accepted", "revoked", "rotated"]


# --- a rehearsal


def test_a_rehearsal_says_what_is_switched_on_and_its_policies_demand_it(tmp_path):
    from personafl.backends.deploy.rehearsal_policy import allowing, protection

    for sites, secure in ((("a", "b", "c"), True), (("a", "b"), None)):
        layout = init_federation(tmp_path / str(len(sites)), sites)
        config = layout.folder / "federation.toml"
        config.write_text(config.read_text().replace("min_answers = 2", "min_answers = 1"))
        assert allowing(config).get("secure") is secure
        said = protection(config)
        assert ("secure aggregation" in said, "a robust rule (clip)" in said) == (bool(secure), not secure)
        assert said.endswith("each site's policy.toml, which allows this run and no other")


def test_the_policy_of_a_rehearsal_allows_its_run_and_no_other(clinics, tmp_path):
    import tomli_w

    from personafl.backends.deploy.rehearsal_policy import allowing
    from personafl.backends.flower.policy import check_order, read_policy
    from tests.backends.flower.asking import Operator

    (tmp_path / "policy.toml").write_text(tomli_w.dumps(allowing(clinics / "federation.toml")))
    policy, ann = read_policy(tmp_path / "policy.toml"), Operator(tmp_path)

    def asked_for(**job):
        from personafl.algorithms import Sent
        from personafl.backends.flower.job import Order

        check_order(policy, "ann", Order(ann.job(**job), 1, 0, 0, Sent({})), [], True)

    asked_for(algorithm="ditto", model="mlp")
    for other in ({"algorithm": "fedavg", "model": "mlp"}, {"algorithm": "ditto", "model": "mclr"}):
        with pytest.raises(ConfigError, match=r"its policy allows the"):
            asked_for(**other)
