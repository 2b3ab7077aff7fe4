"""Key pairs by which sites and the operator prove who they are, and files that nobody else may read."""

from __future__ import annotations

import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def make_key(name: str) -> tuple[bytes, bytes]:
    """A private and a public key, of a site or of the operator, as `ssh-keygen -t ecdsa -b 384` writes them.

    Examples
    --------
    >>> private, public = make_key("hospital-3")
    >>> public.split()[0], public.split()[2]
    (b'ecdsa-sha2-nistp384', b'hospital-3')
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return private, public_line(key.public_key(), name)


def public_line(key: ec.EllipticCurvePublicKey, name: str) -> bytes:
    """A public key as `ssh-keygen` writes it, with a name behind it."""
    public: bytes = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public + b" " + name.encode() + b"\n"


def key_fingerprint(public: bytes) -> str:
    """What people read to each other to compare keys, as `ssh-keygen -lf` shows it.

    >>> key_fingerprint(make_key("north")[1])[:7]
    'SHA256:'
    """
    return "SHA256:" + b64encode(sha256(b64decode(public.split()[1])).digest()).decode().rstrip("=")


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, at no moment anybody else."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def is_private(path: Path) -> bool:
    """Whether nobody but its owner can read or write a file."""
    return stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def open_to_others(place: Path) -> Iterator[Path]:
    """Files in a folder (or this file) that others can read: no folder above them, up to this one, keeps them out."""
    if not place.exists() or is_private(place) or is_private(place.parent):
        return
    if place.is_dir():
        for inner in place.iterdir():
            if not inner.is_symlink():
                yield from open_to_others(inner)
    else:
        yield place


def key_problem(private: Path, public: Path) -> str | None:
    """What is wrong with a pair of key files, or None."""
    try:
        key = serialization.load_ssh_private_key(private.read_bytes(), None)
        other = serialization.load_ssh_public_key(public.read_bytes())
    except (OSError, ValueError, TypeError) as error:  # TypeError: the key has a passphrase
        return f"cannot be read: {error}"
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return "is not an elliptic-curve key: make one with ssh-keygen -t ecdsa -b 384"
    if key.public_key() != other:
        return f"does not belong to {public.name}"
    return None
