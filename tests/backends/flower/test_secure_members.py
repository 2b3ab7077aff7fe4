"""A site's part in a secure sum, one call after another, and operators who try to get more than the sum."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from personafl.backends.deploy.keys import make_key
from personafl.backends.flower.secure import sums
from personafl.backends.flower.secure.masks import stream, unmasked
from personafl.backends.flower.secure.member import Member
from personafl.errors import ConfigError, DataError
from tests.backends.flower.test_pretenders import Joint

NAMES = ("ann", "bob", "cem", "dan")
LABEL = "run 1"


class Sites:
    """Four sites with keys, which know each other's."""

    def __init__(self, folder: Path, threshold: int = 3) -> None:
        self.folder, self.threshold = folder, threshold
        (folder / "members").mkdir(parents=True)
        for name in NAMES:
            private, public = make_key(name)
            (folder / f"{name}.key").write_bytes(private)
            (folder / "members" / f"{name}.pub").write_bytes(public)
        self.adverts = {name: self[name].make_keys(LABEL, 4, threshold) for name in NAMES}

    def __getitem__(self, name: str) -> Member:
        """As another process has it, for each message."""
        return Member(name, self.folder / name, self.folder / f"{name}.key", self.folder / "members")

    def share(self, colluders: int = 0) -> None:
        self.boxes = {name: self[name].share(LABEL, self.adverts, colluders) for name in NAMES}

    def to(self, name: str, *without: str) -> dict[str, str]:
        return {other: box[name] for other, box in self.boxes.items() if other not in (name, *without)}

    def mask(self, *names: str, without: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        for name in names:
            self[name].begin_masking(LABEL, self.to(name, *without), 4)
        return {name: self[name].mask(LABEL, vector(name)) for name in names}


def vector(name: str) -> np.ndarray:
    return np.arange(5, dtype=np.uint32) * (1 + NAMES.index(name))


@pytest.fixture
def sites(tmp_path):
    return Sites(tmp_path)


@pytest.mark.parametrize("gone,silent", [((), ()), (("dan",), ()), ((), ("cem",))])
def test_the_sum_is_the_sum_of_those_who_answered(sites, gone, silent):
    sites.share()
    active = [name for name in NAMES if name not in gone]
    masked = sites.mask(*active)
    told = [sites[name].reveal(LABEL, active, gone) for name in active if name not in silent]
    shares = {name: [found[name] for found in told] for name in NAMES}
    total = unmasked(masked, sites.adverts, shares)
    assert total.tolist() == sum(vector(name) for name in active).tolist()
    alone = np.stack(list(masked.values()))
    assert not any((row == vector(name)).any() for name, row in zip(masked, alone, strict=True))


def test_who_did_not_share_is_in_no_mask(sites):
    sites.share()
    masked = sites.mask("ann", "bob", "cem", without=("dan",))
    told = [sites[name].reveal(LABEL, ["ann", "bob", "cem"], []) for name in ("ann", "bob", "cem")]
    adverts = {name: advert for name, advert in sites.adverts.items() if name != "dan"}
    total = unmasked(masked, adverts, {name: [found[name] for found in told] for name in adverts})
    assert total.tolist() == sum(vector(name) for name in adverts).tolist()


@pytest.mark.parametrize(
    "active,gone",
    [
        (NAMES, ("bob",)),  # both secrets of one site
        (("ann", "bob", "cem"), ()),  # somebody is left out
        ((*NAMES, "eve"), ()),  # somebody who never was there
        (("bob", "cem", "dan"), ("ann",)),  # its own private key
        (("ann", "bob"), ("cem", "dan")),  # a sum that is too small
        (("ann", "ann", "bob", "cem"), ("dan",)),  # one twice, to make them seem many
    ],
)
def test_a_site_unmasks_one_sum_of_enough_and_nothing_else(sites, active, gone):
    sites.share()
    sites.mask(*NAMES)
    with pytest.raises(ConfigError, match=r"^site ann (was asked to unmask others|does not unmask a sum)"):
        sites["ann"].reveal(LABEL, active, gone)
    sites["ann"].reveal(LABEL, NAMES, ())
    with pytest.raises(ConfigError, match="is not at this step"):
        sites["ann"].reveal(LABEL, NAMES[:3], NAMES[3:])


def test_no_step_is_taken_twice(sites):
    sites.share()
    with pytest.raises(ConfigError, match="is not at this step"):
        sites["ann"].share(LABEL, sites.adverts)
    sites.mask("ann")
    for again in (lambda: sites["ann"].begin_masking(LABEL, sites.to("ann"), 4), lambda: sites.mask("ann"),
                  lambda: sites["ann"].mask(LABEL, vector("bob"))):  # fmt: skip
        with pytest.raises(ConfigError, match="is not at this step"):
            again()
    with pytest.raises(ConfigError, match="is not at this step"):
        sites["bob"].begin_masking("another sum", sites.to("bob"), 4)


def test_keys_that_a_site_has_not_signed_are_noticed(sites):
    """An operator in the middle, who would know all pairs of masks."""
    own = Member("bob", sites.folder / "operator").make_keys(LABEL, 4, 3)
    cases = [
        ("bob", replace(own, signature=sites.adverts["bob"].signature), "keys of bob that this site has not signed"),
        ("bob", own, "keys of bob that this site has not signed"),
        ("bob", replace(sites.adverts["bob"], shares=own.shares), "keys of bob that this site has not signed"),
        ("bob", sites.adverts["cem"], "the same key twice"),
        ("ann", own, "somebody has changed its keys"),
        ("eve", own, "no safe threshold"),
        ("../x", own, "no safe threshold"),
    ]
    for name, advert, why in cases:
        with pytest.raises(ConfigError, match=why):
            sites["ann"].share(LABEL, {**sites.adverts, name: advert})
    few = {name: sites.adverts[name] for name in ("ann", "bob", "cem")}
    with pytest.raises(ConfigError, match="no key of eve among its members"):
        sites["ann"].share(LABEL, {**few, "eve": own})
    sites["ann"].share(LABEL, few)


def test_keys_of_an_earlier_sum_are_not_those_of_this_one(sites):
    old = sites["bob"].make_keys("run 0", 4, 3)
    with pytest.raises(ConfigError, match="keys of bob that this site has not signed"):
        sites["ann"].share(LABEL, {**sites.adverts, "bob": old})


def test_a_threshold_that_gives_both_secrets_of_a_site_is_refused(tmp_path):
    sites = Sites(tmp_path, threshold=2)
    with pytest.raises(ConfigError, match="2 of 4 sites are no safe threshold"):
        sites.share()
    sites = Sites(tmp_path / "more", threshold=3)
    with pytest.raises(ConfigError, match="3 of 4 sites are no safe threshold"):
        sites.share(colluders=2)


def test_shares_that_are_not_for_a_site_are_noticed(sites):
    sites.share()
    for name, box, why in (
        ("bob", sites.boxes["cem"]["ann"], "a share of bob that is not for it"),
        ("bob", sites.boxes["bob"]["cem"], "a share of bob that is not for it"),
        ("bob", "nonsense", "a share of bob that is not for it"),
        ("eve", sites.boxes["bob"]["ann"], "a share of eve that is not for it"),
    ):
        with pytest.raises(ConfigError, match=why):
            sites["ann"].begin_masking(LABEL, {**sites.to("ann"), name: box}, 4)
    with pytest.raises(ConfigError, match="too small: 2 sites are left, 3 are needed"):
        sites["ann"].begin_masking(LABEL, {"bob": sites.boxes["bob"]["ann"]}, 4)
    with pytest.raises(ConfigError, match="over 4 sites, not 400"):
        sites["ann"].begin_masking(LABEL, sites.to("ann"), 400)


def test_a_private_key_that_is_not_the_one_is_not_used(sites):
    sites.share()
    masked = sites.mask("ann", "bob", "cem")
    told = [sites[name].reveal(LABEL, ["ann", "bob", "cem"], ["dan"]) for name in ("ann", "bob", "cem")]
    shares = {name: [found[name] for found in told] for name in NAMES}
    for broken in ({**shares, "dan": shares["ann"]}, {**shares, "dan": ["00"] * 3}, {**shares, "ann": ["zz"] * 3}):
        with pytest.raises(DataError, match="do not fit together"):
            unmasked(masked, sites.adverts, broken)


def test_masks_are_spread_over_all_numbers_and_take_all_of_their_key():
    mask = stream(bytes(range(32)), np.zeros(200_000, np.uint32)).astype(float) / 2**32
    assert abs(mask.mean() - 0.5) < 0.003 and abs(mask.var() - 1 / 12) < 0.001
    # Flower's generator takes the exclusive or of the key's words: keys with these in another order have one mask.
    key = bytes(range(32))
    other = key[4:] + key[:4]
    assert (pseudo_rand_gen(key, 2**32, [(9,)])[0] == pseudo_rand_gen(other, 2**32, [(9,)])[0]).all()
    assert not (stream(key, np.zeros(9, np.uint32)) == stream(other, np.zeros(9, np.uint32))).any()


def test_an_operator_who_replaces_keys_is_noticed_by_every_site(tmp_path):
    """In a run, with signed messages: the operator's own process is the one that cheats."""
    joint = Joint(tmp_path, signed=True)
    for node in joint.grid.nodes.values():
        with open(node.site, "a") as file:
            file.write(f'members = "{joint.keys / "keys"}"\n')
    honest = joint.run("fedavg", "honest", rounds=1, eval_every=1, secure={})
    assert "dropped" not in honest.rounds()[0]

    with pytest.MonkeyPatch.context() as patch:
        mine = Member("site-4", tmp_path / "cheat")
        real = sums._advert
        patch.setattr(sums, "_advert", lambda i, text: mine.make_keys(LABEL, 3, 2) if i == 1 else real(i, text))
        cheated = joint.run("fedavg", "cheated", rounds=1, eval_every=1, seed=4, secure={})
    why = cheated.rounds()[0]["dropped"]
    assert why["site-2"] == "site site-2 was sent keys of site-4 that this site has not signed"
    assert why["site-4"] == "site site-4: somebody has changed its keys on the way"
    assert why["site-6"] == "site site-6 was sent keys of site-4 that this site has not signed"
    assert json.loads((tmp_path / "cheated" / "rounds.jsonl").read_text())["steps"] == 0
