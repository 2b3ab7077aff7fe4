"""Who belongs to a federation: a site asks, the operator accepts it, and can revoke it again.

A site makes its key itself, and a request that proves that it has it; the key never leaves the site. The operator
compares the key's fingerprint with what the site says by telephone, and gives back a certificate with what else a site
needs. Everything here is a matter of files, so that a run that is going on sees it at once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from personafl.backends.deploy.certificates import issue_site, make_request, read_request
from personafl.backends.deploy.keys import key_fingerprint, make_key, public_line, write_private
from personafl.backends.deploy.layout import Layout, check_name, write_site
from personafl.backends.flower.records import Record
from personafl.backends.flower.signing import REVOKED, read_private, read_public
from personafl.errors import ConfigError
from personafl.files import make_folder, write_text

RENEWED = ("node.crt", "ca.crt", "orders.pub")
"""What a site gets anew that is in the federation already; its own settings stay as they are."""


@dataclass(frozen=True)
class Accepted:
    """A site that was accepted: its name, the fingerprint of its key, and the archive that goes back to it."""

    name: str
    fingerprint: str
    archive: Path


def request_membership(folder: Path, name: str, new_key: bool = False) -> tuple[Path, str]:
    """Make a site's key, where there is none, and a request for the operator; the request and the key's fingerprint.

    Parameters
    ----------
    folder
        The site's, which is made where it is not there.
    new_key
        Make another key, as `node.key.next`, and ask with that; the present one stays until it is replaced.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     request, fingerprint = request_membership(Path(folder) / "north", "north")
    ...     sorted(path.name for path in request.parent.iterdir())
    ['node.key', 'node.pub', 'north.request']
    """
    check_name(name)
    make_folder(folder)
    key, public = (folder / f"{file}{'.next' if new_key else ''}" for file in ("node.key", "node.pub"))
    if not key.exists():
        private, line = make_key(name)
        write_private(key, private)
        write_text(public, line.decode())
    request = folder / f"{name}.request"
    write_text(request, make_request(name, read_private(key)).decode())
    return request, key_fingerprint(public_line(read_private(key).public_key(), name))


def accept_request(
    federation: Path, request: bytes, *, authority_key: Path | None = None, replace_key: bool = False
) -> Accepted:
    """Take a site into a federation, or give one that is in it another certificate.

    Parameters
    ----------
    request
        What `request_membership` wrote.
    authority_key
        Where the authority's key is; left out, in the operator's folder.
    replace_key
        Whether another key than the one that the operator has of this site may take its place.
    """
    layout = Layout.read(federation)
    operator = layout.operator
    name, key = read_request(request)
    check_name(name)
    known, was_known = operator / "keys" / f"{name}.pub", (operator / "keys" / f"{name}.pub").exists()
    _check_key(operator, name, key, replace_key)
    authority = (operator / "ca.crt").read_bytes()
    certificate = issue_site(read_authority_key(operator, authority_key), authority, name, key)
    line = public_line(key, name)
    another = was_known and read_public(known) != key
    if another:
        _retire(operator, name)
    make_folder(operator / "certificates")
    if another or not was_known:  # by its date one knows how old the key is
        write_text(known, line.decode())
    write_text(operator / "certificates" / f"{name}.crt", certificate.decode())
    sites = tuple(dict.fromkeys([*layout.sites, name]))
    write_text(federation / "deploy.toml", replace(layout, sites=sites).text())
    _change_clients(federation / "federation.toml", name, True)
    Record(operator).note("accepted", site=name, key=key_fingerprint(line))
    return Accepted(name, key_fingerprint(line), _pack(layout, name, certificate, RENEWED if was_known else None))


def revoke_site(federation: Path, name: str) -> list[str]:
    """Take a site out of a federation, also of a run that is going on; what there is to say about it.

    Its key counts no more at once: the run asks it no more and takes no answer of it. nginx and the SuperLink are told
    where they run.
    """
    layout = Layout.read(federation)
    operator = layout.operator
    if "/" in name or not (operator / "keys" / f"{name}.pub").is_file():
        known = ", ".join(sorted(path.stem for path in (operator / "keys").glob("*.pub"))) or "nobody"
        raise ConfigError(f"site {name!r} has no key in {operator / 'keys'}: there are {known}")
    gone = _retire(operator, name)
    rest = tuple(site for site in layout.sites if site != name)
    write_text(federation / "deploy.toml", replace(layout, sites=rest or layout.sites).text())
    Record(operator).note("revoked", site=name, key=key_fingerprint(gone.read_bytes()))
    said = [f"{name}: its key counts no more, and is kept as {gone.relative_to(federation)}"]
    if not _change_clients(federation / "federation.toml", name, False):
        said.append("federation.toml: take it out of federation.clients yourself")
    return [*said, *tell_servers(operator, gone)]


def tell_servers(operator: Path, *gone: Path) -> list[str]:
    """Have nginx read the keys again, and the SuperLink forget those that are gone; what they said."""
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    command = ["sh", "unregister-site.sh", *(str(path.relative_to(operator)) for path in gone)]
    done = subprocess.run(
        command, cwd=operator, env={**os.environ, "PATH": os.pathsep.join(paths)}, capture_output=True, text=True
    )
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-3:]


def read_authority_key(operator: Path, path: Path | None) -> bytes:
    """The key of the federation's authority, which may be kept elsewhere."""
    place = path or operator / "ca.key"
    try:
        return place.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the authority's key {place}: {error.strerror}; bring it here, or say where it is (--ca-key)"
        ) from None


def _check_key(operator: Path, name: str, key: ec.EllipticCurvePublicKey, replace_key: bool) -> None:
    for path in sorted((operator / REVOKED).glob("*.pub")):
        if read_public(path) == key:
            raise ConfigError(f"the key of this request was revoked ({path.name}): the site makes another, --new-key")
    for path in sorted((operator / "keys").glob("*.pub")):
        same = read_public(path) == key
        if same and path.stem != name:
            raise ConfigError(f"the key of this request is that of site {path.stem}: each site has one of its own")
        if path.stem == name and not same and not replace_key:
            raise ConfigError(
                f"site {name} has another key here: if {name} says by telephone that its new one is "
                f"{key_fingerprint(public_line(key, name))}, accept it with --replace"
            )


def _retire(operator: Path, name: str) -> Path:
    """Move a site's key and certificate to those that count no more."""
    make_folder(operator / REVOKED)
    stem = f"{name}@{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    gone = operator / REVOKED / f"{stem}.pub"
    (operator / "keys" / f"{name}.pub").rename(gone)
    if (certificate := operator / "certificates" / f"{name}.crt").exists():
        certificate.rename(operator / REVOKED / f"{stem}.crt")
    return gone


def _pack(layout: Layout, name: str, certificate: bytes, files: tuple[str, ...] | None) -> Path:
    """An archive for a site, without any key; of all files or of some."""
    operator, archive = layout.operator, layout.folder / "handout" / f"{name}.tar.gz"
    make_folder(archive.parent)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        config = (layout.folder / "federation.toml").read_text("utf-8")
        orders = (operator / "orders.pub").read_bytes()
        write_site(layout, name, place, (operator / "ca.crt").read_bytes(), orders, certificate, config)
        with tarfile.open(archive, "w:gz") as to:
            for path in sorted(place.iterdir()):
                if files is None or path.name in files:
                    to.add(path, path.name)
    archive.chmod(0o600)
    return archive


def _change_clients(path: Path, name: str, there: bool) -> bool:
    """Put a name into `federation.clients`, or take it out; whether the file is as it should be now."""
    text = path.read_text("utf-8")
    before = tomllib.loads(text)
    clients = before.get("federation", {}).get("clients")
    if clients is None or (name in clients) == there:
        return True
    wanted = [*clients, name] if there else [client for client in clients if client != name]
    listed = ", ".join(f'"{client}"' for client in wanted)
    new = re.sub(r"^(\s*clients\s*=\s*)\[[^\]]*\]", lambda found: f"{found[1]}[{listed}]", text, count=1, flags=re.M)
    try:
        right = tomllib.loads(new) == {**before, "federation": {**before["federation"], "clients": wanted}}
    except tomllib.TOMLDecodeError:
        right = False
    if right:
        write_text(path, new)
    return right
