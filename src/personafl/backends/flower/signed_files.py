"""Models that are signed by who made them: a site with its own key, the operator with the key of orders."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from personafl.backends.flower.signing import holds, read_private, read_publics
from personafl.errors import ConfigError
from personafl.files import checksum, write_text

FILE = "personafl file 1"
"""What signed bytes begin with: the same key signs messages, too."""


def sign_models(folder: Path, key: Path, by: str) -> None:
    """Sign every model of a folder, each in a file beside it: NAME.safetensors.sig."""
    private = read_private(key)
    for path in sorted(folder.glob("*.safetensors")):
        said = {"by": by, "file": path.name, "sha256": checksum(path)}
        signature = private.sign(_statement(said), ec.ECDSA(hashes.SHA384()))
        write_text(_beside(path), json.dumps({**said, "signature": signature.hex()}, indent=1))


def verify_file(path: Path, public: Path) -> str:
    """Who signed a file; a ConfigError where it is not as it was, or signed with another key."""
    try:
        digest = checksum(path)
        said = json.loads(_beside(path).read_text("utf-8"))
        signature = str(said.pop("signature"))
        signed, by = str(said["sha256"]), str(said["by"])
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{_beside(path)} is no signature of a model") from None
    if not any(holds(key, signature, _statement(said)) for key in read_publics(public)):
        raise ConfigError(f"{path} is not signed with the key {public}")
    if signed != digest:
        raise ConfigError(f"{path} is not as it was when {by} signed it: SHA-256 {digest}, signed {signed}")
    return by


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


def _statement(said: dict[str, str]) -> bytes:
    return json.dumps([FILE, said], sort_keys=True).encode()
