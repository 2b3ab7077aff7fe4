"""Messages that are signed end to end: orders by the operator, introductions and answers by the site that gives them.

Flower authenticates the node that makes a request, not the message in it: what a node pushes is stored with whatever
sender it names. So every message carries a `seal`. An order's says for whom it is, of what kind, in which run, and a
number that only grows; the site has the operator's public key since it joined, and remembers the numbers on its disk.
An answer's says who gives it and to which order; the operator has the public key of every site by its name.

Simulations have no keys, and no seals.
"""

from __future__ import annotations

import json
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from personafl.backends.flower.messages import values
from personafl.errors import ConfigError, DataError
from personafl.files import make_folder, write_text

SEAL = "seal"
REVOKED = "revoked"
"""The operator's folder of keys that count no more, as NAME@DATE.pub, beside that of those that do."""
ORDER, ANSWER = "personafl order 1", "personafl answer 1"
"""What signed bytes begin with: the same key signs other things, too (Flower's requests)."""
AHEAD = 60 * 10**9
"""Nanoseconds: how far ahead of the clock the operator's numbers may be after a restart."""


class OperatorSeal:
    """Signs orders, and checks who gave an answer.

    Parameters
    ----------
    folder
        The operator's: `orders.key`, and the sites' public keys as `keys/NAME.pub`.
    """

    def __init__(self, folder: Path) -> None:
        self._key = read_private(folder / "orders.key")
        self._keys, self._floor = folder / "keys", folder / "orders.number"
        self._last = self._reserved = self._read_floor()

    def knows(self, client: str) -> bool:
        """Whether a site's key is among the sites' now."""
        return "/" not in client and (self._keys / f"{client}.pub").is_file()

    def revoked(self, client: str) -> bool:
        """Whether a site had a key here that was revoked, and has no other."""
        gone = self._keys.with_name(REVOKED)
        return not self.knows(client) and "/" not in client and any(gone.glob(f"{client}@*.pub"))

    def sign(self, content: RecordDict, kind: str, to: str, run: str) -> None:
        """Seal an order, which must not change afterwards."""
        said = {"kind": kind, "to": to, "run": run, "number": self._next()}
        content[SEAL] = ConfigRecord({**said, "signature": signed(self._key, _statement(ORDER, content, said))})

    def check(self, answer: RecordDict, client: str, order: RecordDict) -> None:
        """Refuse an answer, or an introduction, that is not a site's own, or not to this order."""
        path = self._keys / f"{client}.pub"
        if not self.knows(client):
            raise DataError(f"it says that it is site {client}, of whom the operator has no key in {self._keys.name}/")
        if SEAL not in answer:
            raise DataError(f"it says that it is site {client}, and does not sign: its site.toml needs key and orders")
        said = values(answer, SEAL, {"from": str, "order": str, "signature": str})
        signature = said.pop("signature")
        if not holds(read_public(path), signature, _statement(ANSWER, answer, said)) or said["from"] != client:
            raise DataError(f"it says that it is site {client}, and has not signed with that site's key")
        if said["order"] != values(order, SEAL, {"signature": str})["signature"]:
            raise DataError(f"site {client} answers another question")

    def _next(self) -> int:
        """A number above all earlier ones, those of earlier processes included, even if the clock was set back."""
        self._last = max(time.time_ns(), self._last + 1)
        if self._last > self._reserved:
            self._reserved = self._last + AHEAD
            write_text(self._floor, str(self._reserved))
        return self._last

    def _read_floor(self) -> int:
        try:
            return int(self._floor.read_text("utf-8"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._floor} cannot be read: {error}") from None


class SiteSeal:
    """Checks orders, and signs what a site gives away.

    Parameters
    ----------
    site
        Its name.
    folder
        Where it remembers which orders it has had.
    operator, key
        The files of the operator's public key and of the site's own private key.
    """

    def __init__(self, site: str, folder: Path, operator: Path, key: Path) -> None:
        self._site, self._memory = site, folder / "orders.json"
        self._operators, self._key = read_publics(operator), read_private(key)

    def check(self, order: RecordDict, kind: str, node: int) -> None:
        """Refuse an order that is not the operator's, not for this site, of another kind, or not new."""
        if SEAL not in order:
            raise ConfigError(f"site {self._site} takes only orders that are signed by the operator, and this is not")
        said = values(order, SEAL, {"kind": str, "to": str, "run": str, "number": int, "signature": str})
        signature, statement = said.pop("signature"), _statement(ORDER, order, said)
        if not any(holds(key, signature, statement) for key in self._operators):
            raise ConfigError(f"site {self._site} got an order that the operator has not signed")
        # Who a node is, is not known before it was asked: the question goes to the node, everything else to the site.
        if (said["kind"], said["to"]) != (kind, f"node {node}" if kind == "query" else self._site):
            raise ConfigError(
                f"site {self._site} got an order that is meant for {said['to'][:80]}, {said['kind'][:80]}"
            )
        self._remember(said["run"], said["number"])

    def sign(self, answer: RecordDict, order: RecordDict) -> None:
        """Seal an answer to an order."""
        said = {"from": self._site, "order": values(order, SEAL, {"signature": str})["signature"]}
        answer[SEAL] = ConfigRecord({**said, "signature": signed(self._key, _statement(ANSWER, answer, said))})

    def _remember(self, run: str, number: int) -> None:
        """Before the order is followed: one that was given once is not followed twice, whatever happens then."""
        had = self._had()
        # Runs that go on side by side may overtake each other; a run that is new here is newer than everything.
        if number <= had.get(run, max(had.values(), default=0)):
            raise ConfigError(f"site {self._site} has had this order, or a later one: it is not followed again")
        make_folder(self._memory.parent)
        write_text(self._memory, json.dumps({**had, run: number}, indent=1))

    def _had(self) -> dict[str, int]:
        try:
            return {str(run): int(number) for run, number in json.loads(self._memory.read_text("utf-8")).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"site {self._site}: {self._memory.name} cannot be read: {error}") from None


def read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key as `ssh-keygen -t ecdsa` writes it."""
    return _read(path, ec.EllipticCurvePrivateKey, lambda data: serialization.load_ssh_private_key(data, None))


def read_public(path: Path) -> ec.EllipticCurvePublicKey:
    """A public key as `ssh-keygen -t ecdsa` writes it."""
    return _read(path, ec.EllipticCurvePublicKey, serialization.load_ssh_public_key)


def read_publics(path: Path) -> list[ec.EllipticCurvePublicKey]:
    """The operator's public keys, one a line: while its key is being changed there are two."""

    def load(data: bytes) -> list[Any]:
        return [serialization.load_ssh_public_key(line) for line in data.strip().splitlines() or [b""]]

    keys: list[ec.EllipticCurvePublicKey] = _read(path, ec.EllipticCurvePublicKey, load)
    return keys


def _read(path: Path, kind: type, load: Any) -> Any:
    try:
        key = load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
        raise ConfigError(f"the key {path} cannot be read: {error}") from None
    if not all(isinstance(each, kind) for each in (key if isinstance(key, list) else [key])):
        raise ConfigError(f"the key {path} is not an elliptic-curve key: make one with ssh-keygen -t ecdsa -b 384")
    return key


def signed(key: ec.EllipticCurvePrivateKey, statement: bytes) -> str:
    """A signature of a statement."""
    made: bytes = key.sign(statement, ec.ECDSA(hashes.SHA384()))
    return made.hex()


def holds(key: ec.EllipticCurvePublicKey, signature: str, statement: bytes) -> bool:
    """Whether a signature is of this key and this statement."""
    try:
        key.verify(bytes.fromhex(signature), statement, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(purpose: str, content: RecordDict, said: dict[str, Any]) -> bytes:
    """What is signed: the seal's own words, and everything that the message holds besides the seal."""
    whole = {name: _describe(name, content[name]) for name in content if name != SEAL}
    return json.dumps([purpose, said, whole], sort_keys=True).encode()


def _describe(name: str, record: Any) -> dict[str, Any]:
    if isinstance(record, ConfigRecord):
        if any(isinstance(value, bytes) for value in record.values()):
            raise DataError(f"the message has bytes in {name[:80]!r}")
        return {"values": dict(record)}
    if isinstance(record, ArrayRecord):
        return {
            "arrays": {key: [a.dtype, list(a.shape), a.stype, sha256(a.data).hexdigest()] for key, a in record.items()}
        }
    raise DataError(f"the message has something that is neither values nor tensors: {name[:80]!r}")
