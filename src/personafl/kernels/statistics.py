"""What layers of batch normalization see of a client's data, and the statistics that they go by afterwards.

A model for use is the parameter vector followed by the statistics of its layers. These are computed when it is made:
over all training data that it is for, at its final parameters. They are what `nn.BatchNorm` with `momentum=None` has
after it has seen this data as one batch. Data that does not fit in memory goes through in parts, once for each call of
a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """What one call of a layer has seen: how many values of each channel, their mean and their variance (divided by n).

    `layer` is the number of the layer among those that keep statistics. Moments of several parts of the data merge into
    those of the whole (law of total variance).

    >>> one, two = (Moments(0, torch.tensor(2.0), torch.tensor([mean]), torch.tensor([1.0])) for mean in (0.0, 4.0))
    >>> Moments.merged([one, two]).variance
    tensor([5.], dtype=torch.float64)
    """

    layer: int
    count: Tensor
    mean: Tensor
    variance: Tensor

    @staticmethod
    def merged(parts: Sequence[Moments]) -> Moments:
        """The moments of several parts of the data together."""
        count = torch.stack([part.count.double() for part in parts])
        share = (count / count.sum().clamp(min=1)).unsqueeze(-1)
        means, variances = (torch.stack([getattr(part, n).double() for part in parts]) for n in ("mean", "variance"))
        mean = (means * share).sum(0)
        return Moments(parts[0].layer, count.sum(), mean, ((variances + (means - mean).square()) * share).sum(0))


class Enough(Exception):
    """The call that was waited for has happened: what it saw."""

    def __init__(self, moments: Moments) -> None:
        self.moments = moments


class Recorder:
    """Writes down what layers see in a forward pass, call after call.

    Where the data goes through in parts, one pass over it is made for each call of a layer: `known` are the moments of
    the calls before, over all data, and the first call after them ends the pass.
    """

    def __init__(self, known: Sequence[Moments] | None = None) -> None:
        self.seen: list[Moments] = []
        self._known = known

    def see(self, now: Moments) -> Moments:
        """What the call is to normalize by."""
        if self._known is not None and len(self.seen) == len(self._known):
            raise Enough(now)
        used = now if self._known is None else self._known[len(self.seen)]
        self.seen.append(used)
        return used


def by_layer(ask: Callable[[Sequence[Moments]], Moments | None]) -> list[Moments]:
    """The moments of all calls over data in parts; `ask(known)` gives those of the next call, or None."""
    known: list[Moments] = []
    while (found := ask(known)) is not None:
        known.append(found)
    return known


def running(seen: Sequence[Moments], like: Sequence[Tensor]) -> Tensor:
    """The statistics of all layers, end to end: the mean, and the variance divided by n − 1, as torch keeps it.

    `like` has the mean and variance that each layer came with. They stay where there are fewer than two values: where a
    client has no data, and where it has one sample of plain features. Moments of K clients (K, channels) give (K, S).
    """
    out, lead = list(like), seen[0].count.shape if seen else ()
    for layer in range(len(like) // 2):
        calls = [moments for moments in seen if moments.layer == layer]
        if not calls:  # the forward pass does not use it
            continue
        counts = [moments.count.unsqueeze(-1) for moments in calls]
        variances = [m.variance * (n / (n - 1).clamp(min=1)) for m, n in zip(calls, counts, strict=True)]
        enough = counts[0] > 1
        for place, values in ((2 * layer, [moments.mean for moments in calls]), (2 * layer + 1, variances)):
            mean = torch.stack(values).mean(0).to(like[place].dtype)
            out[place] = torch.where(enough, mean, like[place].to(mean.device))
    return torch.cat([part.expand(*lead, -1) for part in out], -1)
