"""A site's part in a secure sum: what it keeps between the four messages, and what it refuses.

Its secrets are in a file of its own disk, because every message may meet another process, until the sum is unmasked or
the next one begins. A step is taken once: two vectors under one mask, or both secrets of a site, would tell an answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

from personafl.backends.flower.secure.fixed_point import Words
from personafl.backends.flower.secure.masks import Advert, between, shared_secret, stream
from personafl.backends.flower.signing import holds, read_private, read_public, signed
from personafl.errors import ConfigError
from personafl.files import make_folder, write_text

PURPOSE = "personafl secure 1"
"""What signed keys begin with: the same key signs other things, too."""


@dataclass(frozen=True)
class Progress:
    """What a site keeps of a sum: its secrets, everybody's keys, the shares that it holds of others."""

    label: str
    sites: int
    threshold: int
    stage: str
    advert: Advert
    private: tuple[str, str]
    adverts: dict[str, Advert] = field(default_factory=dict)
    seed: str = ""
    shares: dict[str, tuple[str, str]] = field(default_factory=dict)


class Member:
    """One site in secure sums.

    Parameters
    ----------
    site
        Its name.
    folder
        Where it keeps its secrets.
    key
        The file of its private key, with which it signs its public keys; None where nothing is signed.
    members
        The folder with the other sites' public keys. None where it has none: then the operator is trusted to pass on
        the keys of sites and not its own.
    """

    def __init__(self, site: str, folder: Path, key: Path | None = None, members: Path | None = None) -> None:
        self._site, self._file, self._key, self._members = site, folder / "secure.json", key, members

    def make_keys(self, label: str, sites: int, threshold: int) -> Advert:
        """New keys for a sum of at most so many sites; what was kept of an earlier one is forgotten."""
        pairs = [generate_key_pairs() for _ in range(2)]
        private = tuple(private_key_to_bytes(pair[0]).decode() for pair in pairs)
        advert = Advert(*(public_key_to_bytes(pair[1]).decode() for pair in pairs))
        if self._key is not None:
            text = _statement(label, self._site, threshold, advert)
            advert = replace(advert, signature=signed(read_private(self._key), text))
        self._keep(Progress(label, sites, threshold, "keys", advert, (private[0], private[1])))
        return advert

    def share(self, label: str, adverts: Mapping[str, Advert], colluders: int = 0) -> dict[str, str]:
        """Shares of this site's two secrets, encrypted for each other site."""
        now = self._read(label, "keys")
        self._check(now, adverts, colluders)
        names, seed = sorted(adverts), os.urandom(32)
        halves = [create_shares(secret, now.threshold, len(names)) for secret in (seed, now.private[0].encode())]
        out: dict[str, str] = {}
        for k, name in enumerate(names):
            if name != self._site:
                text = share_keys_plaintext_concat(names.index(self._site), k, halves[0][k], halves[1][k])
                out[name] = encrypt(shared_secret(now.private[1], adverts[name].shares), text).decode()
        mine = names.index(self._site)
        held = {self._site: (halves[0][mine].hex(), halves[1][mine].hex())}
        self._keep(replace(now, stage="shares", adverts=dict(adverts), seed=seed.hex(), shares=held))
        return out

    def begin_masking(self, label: str, ciphertexts: Mapping[str, str], sites: int) -> None:
        """Take the shares that others have for this site, before it trains for a sum over so many sites."""
        now = self._read(label, "shares")
        if sites != now.sites:
            raise ConfigError(f"site {self._site} made keys for a sum over {now.sites} sites, not {sites}")
        if len(ciphertexts) + 1 < now.threshold:
            few = f"{len(ciphertexts) + 1} sites are left, {now.threshold} are needed"
            raise ConfigError(f"site {self._site} gives nothing to a sum that is too small: {few}")
        names, held = sorted(now.adverts), dict(now.shares)
        for name, ciphertext in ciphertexts.items():
            held[name] = self._open(now, names, name, ciphertext)
        self._keep(replace(now, stage="ready", shares=held))

    def mask(self, label: str, vector: Words) -> Words:
        """A vector as it leaves the site; once."""
        now = self._read(label, "ready")
        self._keep(replace(now, stage="masked"))
        others = {name: now.adverts[name] for name in now.shares if name != self._site}
        return vector + stream(bytes.fromhex(now.seed), vector) + between(self._site, now.private[0], others, vector)

    def reveal(self, label: str, active: Collection[str], gone: Collection[str]) -> dict[str, str]:
        """Shares of the seeds of the active, and of the private keys of those that are gone; once."""
        now = self._read(label, "masked")
        everybody = sorted([*active, *gone])
        if everybody != sorted(now.shares) or self._site not in active:
            raise ConfigError(f"site {self._site} was asked to unmask others than those who took part, or one twice")
        if len(active) < now.threshold:
            few = f"{len(active)} answers, {now.threshold} are needed"
            raise ConfigError(f"site {self._site} does not unmask a sum that is too small: {few}")
        self._file.unlink()
        return {name: now.shares[name][0 if name in active else 1] for name in everybody}

    # --- how -------------------------------------------------------------------------------------------------

    def _check(self, now: Progress, adverts: Mapping[str, Advert], colluders: int) -> None:
        if adverts.get(self._site) != now.advert:
            raise ConfigError(f"site {self._site}: somebody has changed its keys on the way")
        fits = now.threshold <= len(adverts) <= now.sites and 2 * now.threshold > len(adverts) + colluders
        if not fits:
            raise ConfigError(f"site {self._site}: {now.threshold} of {len(adverts)} sites are no safe threshold")
        keys = [key for advert in adverts.values() for key in (advert.masks, advert.shares)]
        if len(set(keys)) < len(keys):
            raise ConfigError(f"site {self._site} was sent the same key twice")
        for name, advert in adverts.items() if self._members is not None else ():
            self._verify(now, name, advert)

    def _verify(self, now: Progress, name: str, advert: Advert) -> None:
        """Refuse keys that are not a member's own: an operator who knew all but one could subtract them."""
        assert self._members is not None
        path = self._members / f"{name}.pub"
        if "/" in name or not path.is_file():
            raise ConfigError(f"site {self._site} has no key of {name[:80]} among its members")
        if not holds(read_public(path), advert.signature, _statement(now.label, name, now.threshold, advert)):
            raise ConfigError(f"site {self._site} was sent keys of {name[:80]} that this site has not signed")

    def _open(self, now: Progress, names: list[str], name: str, ciphertext: str) -> tuple[str, str]:
        try:
            secret = shared_secret(now.private[1], now.adverts[name].shares)
            sender, receiver, *shares = share_keys_plaintext_separate(decrypt(secret, ciphertext.encode()))
            if (sender, receiver) != (names.index(name), names.index(self._site)):
                raise ValueError
        except (KeyError, ValueError, InvalidToken):
            raise ConfigError(f"site {self._site} was sent a share of {name[:80]} that is not for it") from None
        return shares[0].hex(), shares[1].hex()

    def _read(self, label: str, stage: str) -> Progress:
        try:
            kept = json.loads(self._file.read_text("utf-8"))
        except FileNotFoundError:
            kept = {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"site {self._site}: {self._file.name} cannot be read: {error}") from None
        if (kept.get("label"), kept.get("stage")) != (label, stage):
            raise ConfigError(f"site {self._site} is not at this step of this sum: it was away, or has answered")
        return _progress(kept)

    def _keep(self, now: Progress) -> None:
        make_folder(self._file.parent)
        write_text(self._file, json.dumps(asdict(now)))


def _progress(kept: dict[str, Any]) -> Progress:
    adverts = {name: Advert(**advert) for name, advert in kept.pop("adverts").items()}
    shares = {name: (pair[0], pair[1]) for name, pair in kept.pop("shares").items()}
    private = kept.pop("private")
    return Progress(
        advert=Advert(**kept.pop("advert")), adverts=adverts, shares=shares, private=(private[0], private[1]), **kept
    )


def _statement(label: str, site: str, threshold: int, advert: Advert) -> bytes:
    return json.dumps([PURPOSE, label, site, threshold, advert.masks, advert.shares]).encode()
