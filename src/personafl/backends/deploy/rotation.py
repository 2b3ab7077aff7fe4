"""New keys and certificates in the place of old ones, in an order in which nobody is locked out meanwhile."""

from __future__ import annotations

from pathlib import Path

from personafl.backends.deploy.certificates import issue_server
from personafl.backends.deploy.keys import make_key
from personafl.backends.deploy.layout import Layout, split_address
from personafl.backends.deploy.membership import read_authority_key
from personafl.backends.flower.records import Record
from personafl.errors import ConfigError
from personafl.files import make_folder, write_text

NEXT = "orders.next.key"


def rotate_server(federation: Path, authority_key: Path | None = None) -> list[str]:
    """Another key and certificate for the server, which sites do not notice; what there is to do then."""
    layout = Layout.read(federation)
    operator, (host, _) = layout.operator, split_address(layout.address)
    authority = (operator / "ca.crt").read_bytes()
    hosts = [host, "localhost", "127.0.0.1", "::1"]
    key, certificate = issue_server(read_authority_key(operator, authority_key), authority, hosts)
    write_text(operator / "server.key", key.decode())
    write_text(operator / "server.crt", certificate.decode())
    Record(operator).note("rotated", what="server")
    return [
        "server.key and server.crt are new",
        "now: systemctl reload personafl-proxy; between two runs: systemctl restart personafl-superlink",
    ]


def rotate_orders(federation: Path, finish: bool = False) -> list[str]:
    """Another key for orders, in two steps; what there is to do then.

    First sites learn of the new key beside the old one (`orders.pub` has both), and orders are signed with the old one
    still. When all sites have that file, `finish` signs with the new key, and `orders.pub` has it alone.
    """
    operator = Layout.read(federation).operator
    waiting, public = operator / NEXT, operator / "orders.pub"
    handout = federation / "handout" / "orders.pub"
    make_folder(handout.parent)
    if not finish:
        if waiting.exists():
            raise ConfigError(f"{waiting} is waiting already: give all sites orders.pub, then --finish")
        private, line = make_key("orders")
        write_text(waiting, private.decode())
        write_text(public, public.read_text("utf-8") + line.decode())
        write_text(handout, public.read_text("utf-8"))
        Record(operator).note("rotated", what="orders", step="begun")
        return [
            f"give every site {handout}, in the place of its orders.pub; when all have it, --finish between two runs"
        ]
    if not waiting.exists():
        raise ConfigError(f"there is no {waiting}: begin without --finish")
    write_text(operator / "orders.key", waiting.read_text("utf-8"))
    write_text(public, public.read_text("utf-8").splitlines(keepends=True)[-1])
    write_text(handout, public.read_text("utf-8"))
    waiting.unlink()
    Record(operator).note("rotated", what="orders", step="finished")
    return [
        f"orders are signed with the new key; give every site {handout} once more, so that the old one counts no more"
    ]
