"""What `personafl deploy` and `personafl site` have about members, keys and records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from personafl.cli.console import Json, print_json, say

if TYPE_CHECKING:
    from personafl.backends.deploy import Finding

Folder = Annotated[Path, typer.Argument(help="The federation's folder.", metavar="DIR", readable=False)]
CaKey = Annotated[
    Path | None, typer.Option("--ca-key", metavar="FILE", help="The authority's key, if not operator/ca.key.")
]
STYLES = {"good": "green", "warning": "yellow", "bad": "red"}


def accept(
    folder: Folder,
    request: Annotated[Path, typer.Argument(help="What a site sent: NAME.request.", metavar="REQUEST")],
    ca_key: CaKey = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take another key than the one known so far.")] = False,
    as_json: Json = False,
) -> None:
    """Take a site into a federation, also a running one, or renew its certificate.

    Compare the key's fingerprint with what the site says by telephone. The
    archive goes back to the site; it holds no private key. Then:
    operator/register-sites.sh NAME

    Examples:

      personafl deploy accept clinics north.request
    """
    from personafl.cli.console import out

    need_flower()
    from personafl.backends.deploy import accept_request

    done = accept_request(folder, _read(request), authority_key=ca_key, replace_key=replace)
    if as_json:
        print_json({"site": done.name, "fingerprint": done.fingerprint, "archive": str(done.archive)})
        return
    say(out, f"{done.name}: {done.fingerprint}")
    say(out, f"Send back: {done.archive} (no key is in it)")
    say(out, f"Then: {folder}/operator/register-sites.sh {done.name}")


def revoke(
    folder: Folder,
    site: Annotated[str, typer.Argument(help="Who is to leave.", metavar="SITE")],
    as_json: Json = False,
) -> None:
    """Take a site out of a federation, and of the run that is going on.

    Its key counts no more at once, nginx and the SuperLink are told, and
    what the server keeps of it is dropped before the next aggregation.

    Examples:

      personafl deploy revoke clinics north
    """
    from personafl.cli.console import out

    need_flower()
    from personafl.backends.deploy import revoke_site

    said = revoke_site(folder, site)
    if as_json:
        print_json({"site": site, "said": said})
        return
    for line in said:
        say(out, line)


def rotate(
    folder: Folder,
    what: Annotated[str, typer.Argument(help="server, or orders.", metavar="WHAT")],
    finish: Annotated[bool, typer.Option("--finish", help="orders: every site has the new orders.pub.")] = False,
    ca_key: CaKey = None,
    as_json: Json = False,
) -> None:
    """Renew the server's certificate, or the key that orders are signed with.

    A site's own key is renewed by the site: personafl site request --new-key.

    Examples:

      personafl deploy rotate clinics server

      personafl deploy rotate clinics orders
    """
    from personafl.cli.console import out
    from personafl.errors import ConfigError

    need_flower()
    from personafl.backends.deploy.rotation import rotate_orders, rotate_server

    if what not in ("server", "orders"):
        raise ConfigError(f"{what!r} cannot be renewed here: server or orders; a site renews its own key itself")
    said = rotate_server(folder, ca_key) if what == "server" else rotate_orders(folder, finish)
    if as_json:
        print_json({"what": what, "said": said})
        return
    for line in said:
        say(out, line)


def deploy_check(folder: Folder, as_json: Json = False) -> None:
    """Look at the certificates and keys of a federation: which end within 30 days?

    A key has no end of its own: it is to be renewed when it is 825 days old.

    Exit code 0 when none has ended, 1 when one has.

    Examples:

      personafl deploy check clinics
    """
    need_flower()
    from personafl.backends.deploy import Layout
    from personafl.backends.deploy.expiry import operator_findings

    show_findings(operator_findings(Layout.read(folder).operator), as_json)


def deploy_log(folder: Folder, as_json: Json = False) -> None:
    """What is on the operator's record: who was accepted, joined, answered, was refused or revoked.

    A record that was changed or cut is an error that names the line.
    --json: JSON lines.

    Examples:

      personafl deploy log clinics
    """
    show_log(folder / "operator", as_json)


def site_log(
    config: Annotated[
        Path, typer.Argument(help="The site's site.toml, or its folder.", metavar="[SITE.toml]", readable=False)
    ] = Path("site.toml"),
    as_json: Json = False,
) -> None:
    """What is on this site's record: what ran, what was sent (names, sizes, norms, hashes), what was refused.

    A record that was changed or cut is an error that names the line.
    --json: JSON lines.

    Examples:

      personafl site log

      personafl site log sites/north --json
    """
    import tomllib

    from personafl.errors import ConfigError

    path = config / "site.toml" if config.is_dir() else config
    try:
        folder = path.parent / str(tomllib.loads(_read(path).decode()).get("folder", "."))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    show_log(folder, as_json)


def request(
    folder: Annotated[Path, typer.Argument(help="The site's folder; made if it is not there.", metavar="DIR")],
    name: Annotated[str, typer.Argument(help="What the site is called in the federation.", metavar="NAME")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Ask with a new key, node.key.next.")] = False,
    as_json: Json = False,
) -> None:
    """Make this site's key, and a request to the operator: the key stays here.

    Send NAME.request to the operator, and say the fingerprint by telephone.
    Unpack the archive that comes back into the folder.

    Examples:

      personafl site request /srv/personafl/north north
    """
    from personafl.cli.console import out

    need_flower()
    from personafl.backends.deploy import request_membership

    written, fingerprint = request_membership(folder, name, new_key)
    if as_json:
        print_json({"request": str(written), "fingerprint": fingerprint})
        return
    say(out, f"Send to the operator: {written}")
    say(out, f"Say by telephone: {fingerprint}")


def verify(
    model: Annotated[Path, typer.Argument(help="A .safetensors file with its .sig beside it.", metavar="MODEL")],
    key: Annotated[Path, typer.Option(metavar="PUB", help="The public key: node.pub of a site, or orders.pub.")],
    as_json: Json = False,
) -> None:
    """Who signed a model, and whether it is as it was then.

    Examples:

      personafl site verify models/personal.safetensors --key node.pub
    """
    from personafl.cli.console import out

    need_flower()
    from personafl.backends.flower.signed_files import verify_file

    by = verify_file(model, key)
    if as_json:
        print_json({"model": str(model), "by": by})
    else:
        say(out, f"{model}: signed by {by}, unchanged")


def show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """A table of findings; exit code 1 where something is bad."""
    from rich.markup import escape
    from rich.table import Table

    from personafl.cli.console import out

    fit = all(finding.state != "bad" for finding in findings)
    if as_json:
        shown = [{"what": f.what, "state": f.state, "about": f.about} for f in findings]
        print_json({"fit": fit, "findings": shown})
    else:
        table = Table("what", "state", "seen")
        for finding in findings:
            table.add_row(finding.what, f"[{STYLES[finding.state]}]{finding.state}[/]", escape(finding.about))
        out.print(table)
    if not fit:
        raise typer.Exit(1)


def show_log(folder: Path, as_json: bool) -> None:
    """The record of a folder, for people or as JSON lines."""
    from personafl.backends.flower.record_words import RECORD, in_words
    from personafl.cli.console import out
    from personafl.storage.chained_log import ChainedLog

    lines = ChainedLog(folder / RECORD).lines()
    for line in lines:
        print_json(line) if as_json else say(out, in_words(line))
    if not lines and not as_json:
        say(out, f"Nothing is on record in {folder} yet")


def need_flower() -> None:
    """One line where Flower is not installed."""
    from importlib.util import find_spec

    from personafl.errors import ConfigError

    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed, and a federation runs on it: pip install 'personafl[flower]'")


def _read(path: Path) -> bytes:
    from personafl.errors import ConfigError

    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
