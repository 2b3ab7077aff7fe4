"""What a federation's folder holds, and `deploy init`, which writes it.

federation.toml     what is trained: the operator's config
app/                the Flower app: names of functions in the installed personafl, no code
operator/           stays with the operator: the authority's key, the server's certificate, scripts, nginx, systemd
sites/NAME/         goes to that site, and holds everything it needs but its data
deploy.toml         what `deploy init` was asked for
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from personafl.backends.deploy.certificates import issue_server, issue_site, make_authority
from personafl.backends.deploy.keys import make_key, write_private
from personafl.backends.deploy.proxy import write_proxy
from personafl.backends.flower.app import read_operator
from personafl.backends.flower.secure.settings import LEAST
from personafl.config import read_tables
from personafl.errors import ConfigError
from personafl.files import disk_errors, write_text
from personafl.version import __version__

OF_SIMULATIONS = ("data", "partition", "splits", "splitting", "engine", "methods", "ray")
"""What a config says of a simulation, and the sites of a federation decide for themselves."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
RESERVED = ("superlink", "proxy", "run")
SCRIPTS = (
    "start-superlink.sh", "start-proxy.sh", "refresh-proxy.sh", "register-sites.sh", "unregister-site.sh",
    "start-run.sh", "pack-sites.sh", "flwr.sh",
)  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class Layout:
    """A federation's folder, and who talks to whom.

    Parameters
    ----------
    folder
        Where it is.
    sites
        Their names, which are the client ids.
    address
        HOST:PORT by which the sites reach the operator.
    private
        Where the SuperLink listens, which only the operator's own machine may reach.
    runtime_ports
        The port on its own loopback that each site's SuperNode uses for itself; 9094 where nothing is said.
    """

    folder: Path
    sites: tuple[str, ...] = ("site-1", "site-2", "site-3")
    address: str = "127.0.0.1:9092"
    private: str = "127.0.0.1:9093"
    runtime_ports: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.sites:
            check_name(name)
        if len({name.lower() for name in self.sites}) < len(self.sites) or not self.sites:
            raise ConfigError(f"sites = {', '.join(self.sites) or 'none'}: name at least one, and each only once")
        split_address(self.address)

    @property
    def operator(self) -> Path:
        """The operator's folder."""
        return self.folder / "operator"

    def site(self, name: str) -> Path:
        """The folder of a site."""
        return self.folder / "sites" / name

    @property
    def listen(self) -> str:
        """Where nginx listens: on loopback where the address is there, or else on every interface."""
        host, port = split_address(self.address)
        return self.address if host in LOOPBACK else str(port)

    def text(self) -> str:
        """What deploy.toml says."""
        asked = {"version": __version__, "address": self.address, "private": self.private}
        return tomli_w.dumps({**asked, "sites": list(self.sites)})

    @classmethod
    def read(cls, folder: Path) -> Layout:
        """The layout of a folder that `deploy init` wrote."""
        try:
            asked = tomllib.loads((folder / "deploy.toml").read_text("utf-8"))
            return cls(folder, tuple(map(str, asked["sites"])), str(asked["address"]), str(asked["private"]))
        except FileNotFoundError:
            raise ConfigError(f"{folder} holds no federation: write one with personafl deploy init {folder}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{folder / 'deploy.toml'} is damaged: {error}") from None


@dataclass(frozen=True)
class Material:
    """Certificates and keys: what `write_federation` cannot make again."""

    authority: bytes
    server_key: bytes
    server: bytes
    site_keys: Mapping[str, tuple[bytes, bytes]]
    orders: tuple[bytes, bytes]
    authority_key: bytes | None = None
    certificates: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def make(cls, layout: Layout, by_request: bool = False) -> Material:
        """New ones; those of the sites too, unless they make their keys themselves."""
        host, _ = split_address(layout.address)
        authority_key, authority = make_authority(f"personafl federation {layout.folder.resolve().name}")
        server_key, server = issue_server(authority_key, authority, [host, "localhost", "127.0.0.1", "::1"])
        keys = {name: make_key(name) for name in (() if by_request else layout.sites)}
        certificates = {
            name: issue_site(authority_key, authority, name, load_ssh_public_key(public))
            for name, (_, public) in keys.items()
        }
        return cls(authority, server_key, server, keys, make_key("orders"), authority_key, certificates)

    @classmethod
    def read(cls, layout: Layout) -> Material:
        """Those of a federation that exists, without the authority's key, which nobody needs to run it."""
        operator = layout.operator
        try:
            keys = {
                name: ((layout.site(name) / "node.key").read_bytes(), (layout.site(name) / "node.pub").read_bytes())
                for name in layout.sites
            }
            certificates = {name: (layout.site(name) / "node.crt").read_bytes() for name in layout.sites}
            authority, server_key, server = (
                (operator / name).read_bytes() for name in ("ca.crt", "server.key", "server.crt")
            )
            if not (operator / "orders.key").exists():
                raise ConfigError(
                    f"{layout.folder} has no operator/orders.key, by which sites know their operator: it is of an "
                    "earlier version of personafl; make it anew with personafl deploy init, and hand out the folders"
                )
            orders = (operator / "orders.key").read_bytes(), (operator / "orders.pub").read_bytes()
            return cls(authority, server_key, server, keys, orders, None, certificates)
        except OSError as error:
            raise ConfigError(
                f"{layout.folder} is not whole: cannot read {error.filename}: {error.strerror}; a federation whose "
                "sites made their keys themselves cannot be rehearsed, make another with personafl deploy init"
            ) from None


def init_federation(
    folder: Path,
    sites: Sequence[str] = (),
    address: str = Layout.address,
    by_request: bool = False,
    config: Path | None = None,
) -> Layout:
    """Write a federation that is ready to start into a new or empty folder.

    Parameters
    ----------
    folder : Path
        Never one that holds anything: keys are not made twice.
    sites : sequence of str
        The sites' names; left out, site-1 to site-3.
    address
        HOST:PORT by which the sites reach the operator's machine.
    by_request
        Sites make their keys themselves, see `accept_request`; False, as for a rehearsal: they are made here.
    config : Path, optional
        What is trained, such as chosen.toml of a fit; left out, an example. See `given_config`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     layout = init_federation(Path(folder), ["north", "south"])
    ...     sorted(path.name for path in layout.site("north").iterdir())
    ['SITE.md', 'ca.crt', 'connection.env', 'federation.toml', 'members', 'node.crt', 'node.key', 'node.pub',
     'orders.pub', 'personafl-site.service', 'policy.toml', 'site.toml', 'start.sh']
    """
    layout = Layout(folder, tuple(sites) or Layout.sites, address)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: name a new one, for keys and settings are never replaced")
    # Secure aggregation where it can be: with enough sites, which have each other's keys. Else a robust rule.
    summed = len(layout.sites) >= LEAST and not by_request
    if config is None:
        named = ", ".join(f'"{name}"' for name in layout.sites)
        how = {"sites": named, "min_answers": min(2, len(layout.sites))}
        text = template("federation.toml", **how, protection=template("secure.toml" if summed else "robust.toml"))
    else:
        text = given_config(config, layout.sites, summed)
    write_federation(layout, Material.make(layout, by_request), text)
    return layout


def write_federation(layout: Layout, material: Material, config: str) -> None:
    """Write everything that `Layout` describes."""
    with disk_errors(layout.folder, "writing"):
        places = ("", "app", "operator", "operator/keys", "operator/certificates", "sites")
        for folder in (*places, *(f"sites/{name}" for name in material.site_keys)):
            (layout.folder / folder).mkdir(0o700, parents=True, exist_ok=True)
        _write(layout.folder / "deploy.toml", layout.text())
        _write(layout.folder / "federation.toml", config)
        _write(layout.folder / "app" / "pyproject.toml", template("app.toml"))
        _write_operator(layout, material)
        for name, (private, public) in material.site_keys.items():
            write_private(layout.site(name) / "node.key", private)
            _write(layout.site(name) / "node.pub", public.decode())
            certificate = material.certificates[name]
            write_site(layout, name, layout.site(name), material.authority, material.orders[1], certificate, config)


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a site."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"site {name!r}: a name is made of letters, digits, dots, dashes and underscores")
    if name in RESERVED:
        raise ConfigError(f"site {name!r}: this name is taken by a part of the federation itself")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address.

    >>> split_address("fl.example.org:443"), split_address("[::1]:9092")
    (('fl.example.org', 443), ('::1', 9092))
    """
    host, _, port = address.rpartition(":")
    if not (_HOST.fullmatch(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"address {address!r}: must be HOST:PORT, such as fl.example.org:9092")
    return host.strip("[]"), int(port)


def given_config(path: Path, sites: Sequence[str], summed: bool) -> str:
    """An operator's config from one of a simulation, which says what the sites' samples look like (`[federation]`).

    What is about the data of a simulation is left out. Where it asks for no protection, it gets secure aggregation
    (`summed`: where there are enough sites for it) or a robust rule, if the algorithm can be combined with them.
    """
    tables = {key: value for key, value in read_tables(path).items() if key not in OF_SIMULATIONS}
    own = tables.get("federation")
    if not isinstance(own, dict) or "input_shape" not in own:
        raise ConfigError(
            f"{path} does not say what the sites' samples look like: add [federation] with input_shape, and classes "
            "unless it is a regression, as chosen.toml of a fit has them"
        )
    own = {**own, "clients": list(sites), "min_answers": min(2, len(sites))}
    own.pop("sites", None)
    text = f"# What the federation trains, from {path.name}.\n\n" + tomli_w.dumps({**tables, "federation": own})
    protections = [template(name) for name in (["secure.toml"] if summed else []) + ["robust.toml"]]
    if "secure" in tables or "robust" in tables:
        protections = []
    why: ConfigError | None = None
    with tempfile.TemporaryDirectory() as folder:
        for protection in [*protections, ""]:
            file = Path(folder) / path.name
            write_text(file, text + protection)
            try:
                read_operator(file)
                return text + protection
            except ConfigError as error:
                why = ConfigError(str(error).replace(str(file), str(path)))
    assert why is not None
    raise why


def template(name: str, /, **values: object) -> str:
    """A file of `templates/` with its `{{name}}` filled in."""
    text = (resources.files("personafl.backends.deploy") / "templates" / name).read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: str(values[found[1]]), text)


def _write_operator(layout: Layout, material: Material) -> None:
    operator = layout.operator
    if material.authority_key is not None:
        write_private(operator / "ca.key", material.authority_key)
    write_private(operator / "server.key", material.server_key)
    write_private(operator / "orders.key", material.orders[0])
    _write(operator / "orders.pub", material.orders[1].decode())
    _write(operator / "ca.crt", material.authority.decode())
    _write(operator / "server.crt", material.server.decode())
    for name, (_, public) in material.site_keys.items():
        _write(operator / "keys" / f"{name}.pub", public.decode())
        _write(operator / "certificates" / f"{name}.crt", material.certificates[name].decode())
    host, port = split_address(layout.private)
    values = {"private": layout.private, "private_host": host, "private_port": port, "listen": layout.listen}
    values |= {"address": layout.address, "sites": ", ".join(layout.sites), "first": layout.sites[0]}
    for name in SCRIPTS:
        _write(operator / name, template(name, **values), executable=True)
    for name in ("environment.sh", "OPERATOR.md", "nginx.conf"):
        _write(operator / name, template(name, **values))
    write_proxy(operator, layout.folder / "federation.toml")
    for name in ("superlink", "proxy"):
        _write(operator / f"personafl-{name}.service", template(f"{name}.service"))


def write_site(
    layout: Layout, name: str, folder: Path, authority: bytes, orders: bytes, certificate: bytes, config: str
) -> None:
    """Write what a site gets of its operator into a folder: everything but its key."""
    _write(folder / "orders.pub", orders.decode())
    _write(folder / "ca.crt", authority.decode())
    _write(folder / "node.crt", certificate.decode())
    (folder / "members").mkdir(0o700)
    for path in sorted((layout.operator / "keys").glob("*.pub")):
        _write(folder / "members" / path.name, path.read_text("utf-8"))
    _write(folder / "federation.toml", config)
    port = layout.runtime_ports.get(name, 9094)
    _write(folder / "connection.env", f"SUPERLINK={layout.address}\nRUNTIME_PORT={port}\n")
    for file in ("site.toml", "policy.toml"):
        _write(folder / file, template(file, name=name))
    _write(folder / "start.sh", template("site-start.sh", name=name), executable=True)
    _write(folder / "personafl-site.service", template("site.service", name=name))
    _write(folder / "SITE.md", template("SITE.md", name=name, address=layout.address))


def _write(path: Path, text: str, executable: bool = False) -> None:
    write_private(path, text.encode())
    if executable:
        path.chmod(0o700)
