"""Noise once on the mean of a round's answers, at the server: `[privacy] noise_at = "server"`.

The server computes Σ p_i y_i of answers y_i that clients have clipped: each is within C of what its client was sent. A
client that has another data set of the same size changes the mean by at most 2 p_i C, so noise of standard deviation
z C max p protects the heaviest client as noise of z C on its own answer would, and lighter ones better: theirs is a
noise multiplier of z max p / (2 p_i). With equal weights all p are 1/K, and the noise is a K-th of what each client
would add, on a mean. With sample weights the heaviest client sets it.

Weights follow from the numbers of samples, which are told as they are, and so are not protected.

Where cohorts are drawn in secret and weights are equal, everybody may have been left out in a round, which protects
too (`accounting.cohort_epsilon`): one ε for all, over all rounds. With sample weights that bound does not hold, as
another client in a place would have another weight; there a client's ε counts the rounds that it answered in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from personafl.algorithms.uploads import Uplink, Uploads
from personafl.states import Ints, State
from personafl.training.accounting import SENSITIVITY, cohort_epsilon, told_epsilon
from personafl.training.privacy import Floats, Noise, Privacy

TOLD = "privacy.told"
"""Of the rows of a checkpoint: Σ (sensitivity / standard deviation)² over the rounds that a client answered in."""


@dataclass
class ServerNoise:
    """The noise that the server adds to means, and the privacy that each client has lost by them.

    Parameters
    ----------
    source
        Where the noise comes from.
    cohort
        How many are drawn in a round; None where they are not drawn in secret.
    told
        Of each client, see `TOLD`.
    """

    privacy: Privacy
    uplink: Uplink
    source: Noise
    cohort: int | None
    told: Floats

    def noisy(self, uploads: Uploads, round: int) -> Uploads:
        """One row, the noisy mean, in place of all answers."""
        if not self.uplink:
            return uploads
        share = torch.stack([uploads.shares(name) for name in self.uplink]).amax(0).cpu().numpy()
        heaviest, one = float(share.max()), uploads.condense()
        if not self.privacy.noise:
            self.told[uploads.ids.cpu().numpy()] = np.inf
            return one
        self.told[uploads.ids.cpu().numpy()] += (SENSITIVITY * share / (self.privacy.noise * heaviest)) ** 2
        sizes = [one.values[name].numel() for name in self.uplink]
        deviation = self.privacy.noise * self.privacy.clip * heaviest
        noise = torch.from_numpy(deviation * self.source.normal("the server", round, sum(sizes))).split(sizes)
        values = {
            name: (one.values[name].cpu().double() + part.view(one.values[name].shape)).to(one.values[name])
            for name, part in zip(self.uplink, noise, strict=True)
        }
        return replace(one, values=values)

    def epsilon(self, ids: Ints, rounds: int) -> Floats:
        """The ε of these clients after so many rounds."""
        privacy, equal = self.privacy, all(how.weights == "equal" for how in self.uplink.values())
        if self.cohort is not None and self.cohort < len(self.told) and equal and self.uplink:
            of_all = cohort_epsilon(privacy.noise, privacy.delta, len(self.told), self.cohort, rounds)
            return np.full(len(ids), of_all)
        made = {told: told_epsilon(float(told), privacy.delta) for told in np.unique(self.told[ids])}
        return np.array([made[told] for told in self.told[ids]], np.float64)

    def rows(self, ids: Ints) -> State:
        """What a checkpoint keeps."""
        return {TOLD: torch.from_numpy(self.told[ids])}

    def put_rows(self, ids: Ints, rows: State) -> None:
        """The inverse of `rows`."""
        self.told[ids] = rows[TOLD].numpy()
