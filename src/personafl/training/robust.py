"""Robust aggregation: the `[robust]` table of a config, and its place in the round.

Between the answers of a round and the algorithm's `aggregate`, on the server, whatever engine or backend made the
answers. A rule either changes answers (`clip`), leaves some out (`krum`, `multi-krum`), or stands in the place of the
means that the algorithm's server takes, by `Uploads.average` (`median`, `trimmed-mean`, `geometric-median`). From the
algorithm's `uplink` follows what is possible: docs/robust.md has a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from personafl.algorithms.base import Algorithm, Each, Sent, Uplink, Uploads
from personafl.checks import check, check_types
from personafl.errors import ConfigError
from personafl.training.robust_rules import geometric_median, krum, shrinking, trimmed_mean, weighted_median

RuleName = Literal["clip", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median"]
RULES = get_args(RuleName)
STAND_INS = ("median", "trimmed-mean", "geometric-median")
"""Rules in the place of a mean."""


@dataclass(frozen=True)
class Robust:
    """Robust aggregation at the server, so that a few wrong answers do not spoil an aggregate.

    Parameters
    ----------
    rule
        `clip` shortens updates to `factor` times the median length of the round. `median` and `trimmed-mean` go by
        coordinate, `geometric-median` by whole answers; `multi-krum` leaves out the share `attackers` of the answers
        that are furthest from others, `krum` all but one.
    factor
        Of `clip`: how many times as long as the median of the round an update may be.
    attackers
        The share of wrong answers that a rule is to hold against: what `trimmed-mean` takes off at either end, and
        Krum's f of n answers, which need n ≥ 2f + 3.
    max_weight_factor
        How many times the median weight an answer may weigh, of those that the rule takes, so that nobody counts with
        samples that it does not have. `inf` for no limit.

    Examples
    --------
    >>> Robust("trimmed-mean", attackers=0.1).table()
    {'rule': 'trimmed-mean', 'attackers': 0.1, 'max_weight_factor': 3.0}
    """

    rule: RuleName = "clip"
    factor: float = 3.0
    attackers: float = 0.2
    max_weight_factor: float = 3.0

    def __post_init__(self) -> None:
        check_types("robust.", self)
        check("robust.rule", self.rule, self.rule in RULES, f"one of {', '.join(RULES)}")
        check("robust.factor", self.factor, self.factor >= 1, "at least 1: the usual update is not clipped")
        check("robust.attackers", self.attackers, 0 <= self.attackers < 0.5, "in [0, 0.5): no rule holds against half")
        usual = "at least 1: the usual answer weighs as much as it does"
        check("robust.max_weight_factor", self.max_weight_factor, self.max_weight_factor >= 1, usual)

    def table(self) -> dict[str, Any]:
        """As a table of run.toml, with what the rule uses."""
        unused = {"attackers"} if self.rule == "clip" else {"factor"}
        unused |= {"attackers"} if self.rule in ("median", "geometric-median") else set()
        return {key: value for key, value in asdict(self).items() if key not in unused}

    def check(self, algorithm: Algorithm) -> None:
        """Raise a ConfigError where an algorithm cannot be combined with this, with the reason."""
        if why := self._refusal(algorithm.uplink):
            raise ConfigError(f"[robust] rule = {self.rule!r} cannot be combined with {algorithm.name}: {why}")

    def _refusal(self, uplink: Uplink) -> str:
        none = [how.unbounded for how in uplink.values() if how.unbounded]
        if self.rule not in STAND_INS:  # goes by lengths or distances of updates
            none += [
                f"it does not say what {name} is relative to"
                for name, how in uplink.items()
                if how.relative_to is None and not (isinstance(how, Each) and how.averaged)
            ]
        if none:
            return f"{', and '.join(dict.fromkeys(none))}; leave [robust] out or choose another algorithm"
        means = [how.irreplaceable for how in uplink.values() if how.irreplaceable]
        if means and self.rule != "clip":
            return f"{', and '.join(dict.fromkeys(means))}; rule = 'clip' can be combined with it"
        return ""

    def check_cohort(self, answers: int) -> None:
        """Refuse Krum for rounds that have too few answers."""
        f = self._wrong(answers)
        if self.rule in ("krum", "multi-krum") and answers < 2 * f + 3:
            raise ConfigError(
                f"robust.attackers = {self.attackers:g}: {f} of the {answers} answers of a round, but {self.rule} "
                f"holds only for n ≥ 2f + 3; take a smaller share, more clients, or rule = 'median'"
            )

    def _wrong(self, answers: int) -> int:
        """Krum's f."""
        return int(self.attackers * answers + 1e-9)  # 0.29 of 100 are 29

    def apply(self, uploads: Uploads, sent: Sent) -> tuple[Uploads, dict[int, float]]:
        """The answers that `aggregate` gets, and whose were clipped or left out.

        Parameters
        ----------
        sent
            What these clients were sent, in the order of the answers.

        Returns
        -------
        tuple
            The answers; by client, what its update was multiplied by, which is 0 for one that is left out.
        """
        if uploads.groups is not None:
            raise TypeError("a robust rule needs each answer, and these were averaged on the way")
        uploads = replace(uploads, factor=self.max_weight_factor)
        if self.rule == "clip":
            return self._clip(uploads, sent)
        if self.rule in ("krum", "multi-krum"):
            return self._choose(uploads, sent)
        return replace(uploads, rule=self.stand_in()), {}

    def stand_in(self) -> Callable[[Tensor, Tensor], Tensor]:
        """A function of rows and weights, in the place of their mean."""
        if self.rule == "trimmed-mean":
            return partial(trimmed_mean, trim=self.attackers)
        return {"median": weighted_median, "geometric-median": geometric_median}[self.rule]

    def _clip(self, uploads: Uploads, sent: Sent) -> tuple[Uploads, dict[int, float]]:
        values, touched = dict(uploads.values), dict[int, float]()
        for name, (update, before) in updates(uploads, sent).items():
            shrunk = shrinking(torch.linalg.vector_norm(update.double(), dim=1), self.factor)
            long = torch.nonzero(shrunk < 1).flatten()
            if not len(long):
                continue  # as they are, to the bit
            made = values[name].clone()
            made[long] = (
                (before[long].double() + shrunk[long, None] * update[long].double()).to(made).view_as(made[long])
            )
            values[name] = made
            for row in long.tolist():
                client = int(uploads.ids[row])
                touched[client] = min(touched.get(client, 1.0), float(shrunk[row]))
        return replace(uploads, values=values), touched

    def _choose(self, uploads: Uploads, sent: Sent) -> tuple[Uploads, dict[int, float]]:
        count = len(uploads)
        f = max(min(self._wrong(count), (count - 3) // 2), 0)  # fewer have answered than usual
        many = count - f if self.rule == "multi-krum" else 1
        if not uploads.values or count < 3:  # nobody has two others to be near to
            return uploads, {}
        chosen = krum(torch.cat([update for update, _ in updates(uploads, sent).values()], 1), f, many)
        out = set(range(count)) - set(chosen.tolist())
        return uploads.rows(chosen), {int(uploads.ids[row]): 0.0 for row in sorted(out)}


def updates(uploads: Uploads, sent: Sent) -> Mapping[str, tuple[Tensor, Tensor]]:
    """For each upload that is relative to something sent: (K, P) differences from it, and the sent rows (K, P)."""
    made = {}
    for name, how in uploads.uplink.items():
        if name in uploads.values and how.relative_to is not None:
            rows = uploads.values[name].reshape(len(uploads), -1)
            base = sent.each[how.relative_to] if how.relative_to in sent.each else sent.shared[how.relative_to][None]
            before = base.reshape(len(base), -1).expand_as(rows).to(rows)
            made[name] = rows - before, before
    return made
