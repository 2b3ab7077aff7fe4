"""What the study says and what it cannot say, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from personafl.study.differences import listed
from personafl_papers.methods.findings import LEVEL, Findings
from personafl_papers.methods.grids import TRIES
from personafl_papers.methods.outcomes import ALONE
from personafl_papers.methods.sizes import SIZES, Size

OPENING = """# All methods on many federations

Made by `{command}` from the runs that it keeps; do not edit. {methods} methods on {federations} federations of real
data, {tries} tries of each method on validation data, then {seeds} seeds, ranked by test accuracy.

**Size: {size}.** {about}

![Mean ranks of all methods; bars join those that Nemenyi's test does not tell apart]({picture})
"""

ABOUT = """{clients} clients where they are drawn, {samples} samples each, of which 40% are for training; images of
{pixels} × {pixels} pixels; one hidden layer of {hidden}; {rounds} rounds of {steps} steps with batches of
{batch_size}."""

CUT = """What was cut: this size takes less than an hour on two cores, and `--size full`, of some four hours, has
{clients} clients, {samples} samples each, images of {pixels} × {pixels} pixels, a hidden layer of {hidden} and
{rounds} rounds. Neither has convolutions or partial participation."""

CANNOT = """## What it cannot say

- **{federations} federations are few for {methods} methods.** A federation is one block of the test, however many seeds
  it has, so mean ranks must be {difference:.1f} apart before Nemenyi's test tells two methods apart. Not told apart
  is not equal.
- **These federations are no sample of all federations.** Most are images of handwriting, learned with one hidden layer.
  Deep networks, large clients and partial participation are not here, and methods that were made for these are
  not at their best. Four hospitals are too few clients to find similar ones among.
- **{tries} tries are little tuning**, the same for all: a method with several settings that matter is tuned less
  well than one with none. Another grid may change places.
- **Training is short.** {largest} of {searches} searches took the largest local rate that they tried: methods that go
  further in a round (optimizers of the server, large steps) are ahead for that reason too, and longer training may
  change places. The range of the rates was set after a look at the validation accuracy of `separate` and
  `fedavg-ft`, and is the same for all.
- **Steps are equal, work is not.** All methods take the same local steps, except where their equations say how many; a
  step of some computes several gradients, and fine-tuning comes on top. The column *gradients* has it.
- **It is the personalized model that is measured.** For FedAvg and whatever makes a better global model only (FedProx,
  SCAFFOLD, FedAdam, …) this is the global model after a client's own local steps. The global model itself has a
  table of its own.
- **Ranks depend on who takes part.** Near relatives (a method and its variant) take several places next to each other,
  and are told apart no better than others.
- **Few test samples.** A federation has some hundred to a few thousand; a point of accuracy is within the spread over
  seeds on the smaller ones, and ranks make as much of it as of ten points.
"""

HOW = """
Every method has the same number of tries, {tries}, with the first seed. They are listed below and were written down
before the runs (`papers/src/personafl_papers/methods/grids.py`). The best on **validation** data is taken (accuracy,
then loss); a method that chooses on validation data itself is scored on a half that is held back from it. Then it
is trained with all seeds; what such a method chooses then, it chooses on all validation data, which the others leave
unused. Data, division, splits, initial weights and batches follow from the seed and are the same
for all methods. Nothing is chosen on test data. All runs are in `runs.jsonl`, what was chosen in `results.csv`.
"""

COSTS = """*Worse off*: the share of clients with fewer right answers than when they train alone with the same seed,
mean over federations, and where it is largest. *p*: of the difference in mean rank from one method, after Holm.
*Gradients*: how many a client computes, over FedAvg's (one of a mixture of models counts once). *Seconds*: of one
processor for a run, mean over federations.
"""

FAILED = """
Who fails (no try ends well, or a seed does not) is ranked last on that federation. Who refuses a federation is not
ranked at all, as ranks are compared over the same federations.
"""

ACCURACY = """% of all test samples of all clients, mean over seeds ± standard deviation; the best of a federation
is bold.
"""

GLOBAL = """% of all test samples, mean over seeds, of the one model for all, where a method has it. Settings were
chosen for the personalized models, not for this one.
"""


def opening(found: Findings, picture: str) -> str:
    """Title, size and picture."""
    return OPENING.format(
        command=found.command, methods=len(found.ranked), federations=len(found.outcomes), tries=TRIES,
        seeds=found.size.seeds, size=found.size.name, about=about(found.size), picture=picture,
    )  # fmt: skip


def about(size: Size) -> str:
    """How large a study is, and what the full one has more."""
    words = ABOUT.format(**asdict(size))
    return words if size.name == "full" else f"{words} {CUT.format(**asdict(SIZES['full']))}"


def says(found: Findings) -> Iterator[str]:
    """What is shown, and what is not."""
    ranking, order, means = found.ranking, found.order, found.means
    verdict = "the methods differ" if ranking.p_f <= LEVEL else "no difference between methods is shown"
    yield "## What it says\n"
    yield (
        f"- Friedman's test: {verdict} (χ² = {ranking.chi2:.1f}, p = {p_text(ranking.p)}; Iman and Davenport's F = "
        f"{ranking.f:.2f}, p = {p_text(ranking.p_f)})."
    )
    worse = [m for m in order if means[m] - means[order[0]] >= ranking.critical_difference]
    yield (
        f"- `{order[0]}` has the best mean rank, {means[order[0]]:.1f} of {len(order)}. Nemenyi's critical difference "
        f"is {ranking.critical_difference:.1f} ranks. Shown to be worse than it: {names(worse)}. The other "
        f"{len(order) - 1 - len(worse)} are not told apart from it."
    )
    for control in found.p:
        yield against(found, control)
    shares = {m: share for m in order if m != ALONE and np.isfinite(share := found.worse_off(m))}
    if shares:
        least, most = min(shares, key=lambda m: shares[m]), max(shares, key=lambda m: shares[m])
        yield (
            f"- Clients that do worse than alone: fewest with `{least}` ({shares[least]:.0%}, mean over federations), "
            f"most with `{most}` ({shares[most]:.0%})."
        )
    yield ""


def against(found: Findings, control: str) -> str:
    """Who is shown to be better or worse than one method."""
    shown = [m for m in found.order if found.p[control][m] <= LEVEL]
    better = [m for m in shown if found.means[m] < found.means[control]]
    worse = [m for m in shown if found.means[m] > found.means[control]]
    return (
        f"- Compared with `{control}` only (mean rank {found.means[control]:.1f}; Holm's correction for "
        f"{len(found.ranked) - 1} comparisons). Shown to be better: {names(better)}. Shown to be worse: {names(worse)}."
    )


def cannot(found: Findings) -> str:
    """What does not follow."""
    difference = found.ranking.critical_difference
    largest, searches = found.at_largest_rate()
    return CANNOT.format(
        federations=len(found.outcomes), methods=len(found.ranked), difference=difference, tries=TRIES,
        largest=largest, searches=searches,
    )  # fmt: skip


def names(methods: Sequence[str]) -> str:
    """Methods in a sentence."""
    return listed([f"`{method}`" for method in methods]) if methods else "none"


def p_text(value: float) -> str:
    """A p-value; nothing for NaN."""
    return "" if np.isnan(value) else f"{value:.1g}" if value < 0.001 else f"{value:.3f}"
