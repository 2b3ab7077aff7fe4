"""What nginx lets through to the SuperLink: which paths, whose requests, how large.

Flower reads a request into memory before it looks who sent it. So nginx refuses what does not name a key of `keys/`,
and bodies that are larger than the run of federation.toml can need. It reads that from `keys.conf` and `paths.conf` in
the operator's folder, which refresh-proxy.sh has written anew.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from math import ceil
from pathlib import Path

from cryptography.hazmat.primitives import serialization

from personafl.errors import PersonaflError
from personafl.files import write_text
from personafl.models import default_model, initialize

FLEET_PATHS = tuple(
    f"/v1/fleet/{what}"
    for what in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
        "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
"""What a site with a registered key asks for. Left out: to register itself or others, which only the operator may."""
VECTORS = 4
"""So many of the size of the model an answer may hold; no algorithm sends more than three."""
PIECE = 5 * 2**20
"""Bytes: Flower cuts arrays into pieces of this size."""
SHARE = 2**11
"""Bytes: more than a site's share of a secret takes, with its name."""
SMALL = 2**14
"""Bytes: more than any request takes that carries no array."""


def answer_bytes(config: Path) -> int:
    """The most that an answer to an order of this run can take."""
    from personafl.backends.flower.app import read_operator

    described, settings = read_operator(config)
    model = described.model or default_model(settings.input_shape)
    outputs = settings.classes or settings.outputs
    module = initialize(model, settings.input_shape, outputs, described.seed, settings.constants)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    if settings.secure is None:
        return VECTORS * 4 * parameters + SMALL
    # Besides numbers of so many bytes, shares for every other site.
    sites = len(settings.clients) or settings.sites
    return VECTORS * max(settings.secure.bits // 8, 4) * parameters + SHARE * sites + SMALL


def write_proxy(operator: Path, config: Path) -> bool:
    """Write what nginx.conf includes; whether it is other than before."""
    return write_keys(operator) | _write(operator / "paths.conf", _paths(answer_bytes(config)))


def write_keys(operator: Path) -> bool:
    """Write whose requests nginx passes on, whatever is trained; whether it is other than before."""
    return _write(operator / "keys.conf", _keys(operator / "keys"))


def _write(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text("utf-8") == text:
        return False
    write_text(path, text)
    return True


def _keys(folder: Path) -> str:
    """nginx's table of the sites' public keys, as a SuperNode names its own with each request."""
    lines = ["# Written by refresh-proxy.sh from keys/.", "map $http_flwr_public_key $site {", '    default "";']
    for path in sorted(folder.glob("*.pub")):
        key = serialization.load_ssh_public_key(path.read_bytes())
        pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        lines.append(f'    "{b64encode(pem).decode()}" "{path.stem}";')
    return "\n".join([*lines, "}", ""])


def _paths(answer: int) -> str:
    """nginx's list of paths, each with the largest body that a site has to send there."""
    sizes = dict.fromkeys(FLEET_PATHS, SMALL)
    sizes["/v1/fleet/push-object"] = min(answer, PIECE) + SMALL
    # The names of the pieces that are to come: 160 bytes each are more than they take.
    sizes["/v1/fleet/push-messages"] = SMALL + 160 * ceil(answer / PIECE)
    lines = [f"# Written by refresh-proxy.sh from federation.toml: an answer has at most {answer} bytes."]
    for path, size in sizes.items():
        lines.append(f"location = {path} {{ client_max_body_size {size}; proxy_pass https://superlink{path}; }}")
    return "\n".join([*lines, ""])


def main() -> None:
    """For refresh-proxy.sh: write both for the operator's folder that is named, and say whether they have changed."""
    operator = Path(sys.argv[1])
    changed, wrong = write_keys(operator), ""  # a key that is gone must be gone, even if nothing can be trained now
    try:
        changed |= write_proxy(operator, operator.parent / "federation.toml")
    except PersonaflError as error:
        wrong = f"error: nothing can be trained as federation.toml is now: {error}"
    print("changed" if changed else "unchanged")
    if wrong:
        sys.exit(wrong)
