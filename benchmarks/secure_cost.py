"""What secure aggregation costs: bytes and processor time of one round, by number of sites and of parameters.

python benchmarks/secure_cost.py

Keys, shares, masks and unmasking, without training and without a network; a plain round would send 4 bytes a parameter.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from personafl.backends.deploy.keys import make_key
from personafl.backends.flower.secure.fixed_point import FixedPoint
from personafl.backends.flower.secure.masks import unmasked
from personafl.backends.flower.secure.member import Member
from personafl.backends.flower.secure.settings import Secure

CASES = ((3, 10_000, 0), (3, 1_000_000, 0), (3, 1_000_000, 1), (10, 1_000_000, 0), (10, 1_000_000, 3), (30, 10_000, 0))


def main() -> None:
    """A line for each case."""
    print(f"{'sites':>5} {'gone':>4} {'parameters':>10} {'kB up':>9} {'plain kB':>9} {'site s':>7} {'server s':>8}")
    for sites, parameters, gone in CASES:
        with tempfile.TemporaryDirectory() as folder:
            up, site, server = one_round(Path(folder), sites, parameters, gone)
        plain = 4 * parameters / 1e3
        print(f"{sites:5} {gone:4} {parameters:10,} {up / 1e3:9,.1f} {plain:9,.1f} {site:7.2f} {server:8.2f}")


def one_round(folder: Path, sites: int, parameters: int, gone: int) -> tuple[float, float, float]:
    """Bytes that a site sends, its processor time, and the server's."""
    names = [f"site-{k:03d}" for k in range(sites)]
    (folder / "members").mkdir()
    for name in names:
        private, public = make_key(name)
        (folder / f"{name}.key").write_bytes(private)
        (folder / "members" / f"{name}.pub").write_bytes(public)
    members = {name: Member(name, folder / name, folder / f"{name}.key", folder / "members") for name in names}
    code, needed, label = FixedPoint(16.0, 32, sites), Secure().needed(sites), "round 1"
    values = np.random.default_rng(0).normal(0, 0.01, parameters)
    left = names[: sites - gone]

    begun = time.process_time()
    adverts = {name: member.make_keys(label, sites, needed) for name, member in members.items()}
    boxes = {name: member.share(label, adverts) for name, member in members.items()}
    for name in left:
        members[name].begin_masking(label, {other: boxes[other][name] for other in names if other != name}, sites)
    vectors = {name: members[name].mask(label, code.encode(values)) for name in left}
    told = {name: members[name].reveal(label, left, names[sites - gone :]) for name in left}
    at_sites = time.process_time() - begun

    begun = time.process_time()
    enough = list(told.values())[:needed]
    total = unmasked(vectors, adverts, {name: [found[name] for found in enough] for name in names})
    server = time.process_time() - begun
    assert np.abs(code.decode(total) - len(left) * values).max() <= len(left) * code.step / 2 + 1e-9
    texts = [asdict(adverts[names[0]]), boxes[names[0]], told[names[0]]]
    return vectors[names[0]].nbytes + sum(len(json.dumps(text)) for text in texts), at_sites / sites, server


if __name__ == "__main__":
    main()
