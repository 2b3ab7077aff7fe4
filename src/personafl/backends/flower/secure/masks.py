"""Masks, and taking them off a sum: Flower's key exchange and secret sharing, and a stream cipher.

Flower 1.41 stretches a shared key to a mask by numpy's Mersenne Twister with a seed of 32 bits (`pseudo_rand_gen`),
which a server can try out. Here a mask is the key stream of ChaCha20 under all 256 bits of it.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key, public_key_to_bytes

from personafl.backends.flower.secure.fixed_point import Words
from personafl.errors import DataError


@dataclass(frozen=True)
class Advert:
    """The public keys of a site for one sum, for masks and for what it shares; signed where the site has a key."""

    masks: str
    shares: str
    signature: str = ""


def stream(key: bytes, like: Words) -> Words:
    """The mask of a key of 32 bytes.

    >>> one, same, other = (stream(bytes([k]) * 32, np.zeros(2, np.uint32)) for k in (1, 1, 2))
    >>> bool((one == same).all()), bool((one == other).any())
    (True, False)
    """
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(like.nbytes)), like.dtype.newbyteorder("<")).astype(like.dtype)


def shared_secret(private: str, public: str) -> bytes:
    """What two sites have in common, from the private key of one and the public key of the other."""
    made: bytes = generate_shared_key(bytes_to_private_key(private.encode()), bytes_to_public_key(public.encode()))
    return made


def between(site: str, private: str, others: Mapping[str, Advert], like: Words) -> Words:
    """What a site adds for all others: of a pair one adds the common mask, the other subtracts it."""
    total = np.zeros_like(like)
    for name, advert in others.items():
        mask = stream(base64.urlsafe_b64decode(shared_secret(private, advert.masks)), like)
        total = total + mask if site > name else total - mask
    return total


def unmasked(
    vectors: Mapping[str, Words], adverts: Mapping[str, Advert], shares: Mapping[str, Collection[str]]
) -> Words:
    """The sum of vectors, without its masks.

    Parameters
    ----------
    vectors
        Those that arrived, by site.
    adverts
        Of all sites that shared.
    shares
        Of each of these at least `threshold`: of its seed where its vector arrived, else of its private key.
    """
    total: Any = sum(vectors.values())
    arrived, like = {name: adverts[name] for name in vectors}, np.zeros_like(total)
    for name in adverts:
        try:
            secret = combine_shares([bytes.fromhex(share) for share in shares[name]])
            if name in vectors:
                total = total - stream(secret, like)
                continue
            if public_key_to_bytes(bytes_to_private_key(secret).public_key()).decode() != adverts[name].masks:
                raise ValueError
        except (ValueError, IndexError, TypeError):
            raise DataError(f"the shares of {name} do not fit together") from None
        # Every other site has added its part of the pair; what this one would have added makes it nothing.
        total = total + between(name, secret.decode(), arrived, like)
    return np.asarray(total)
