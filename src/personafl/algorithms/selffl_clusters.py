"""A level between server and clients of Self-FL (the preprint's section E.4).

`clusters`: "none", "group" (the federation's groups), or "uncertainty" (`cluster_count` clusters, equal in number, by
σ_m²). The server keeps the latest model of each cluster, the w_m-weighted mean of its active clients, and every round
aggregates over all clusters by 1/(σ0² + σ_c²), σ_c² the mean over those clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from personafl.algorithms.base import JobInfo, Uploads
from personafl.errors import ConfigError
from personafl.states import State


class Clusters:
    """What Self-FL does with `clusters`."""

    clusters: str
    cluster_count: int
    use_weights: bool

    # The cluster of each client, where clusters are given groups: set by `_grouped`.
    _groups: ClassVar[tuple[int, ...]] = ()

    def _grouped(self, job: JobInfo) -> Self:
        """This algorithm, with the federation's groups where it asks for them."""
        if self.clusters != "group":
            return self
        if job.groups is None:
            raise ConfigError('algorithm.clusters = "group": the clients of this federation have no groups')
        names = sorted(set(job.groups))
        own: Any = self
        fitted: Self = replace(own)
        object.__setattr__(fitted, "_groups", tuple(names.index(group) for group in job.groups))
        return fitted

    def _new_clusters(self, theta0: Tensor) -> State:
        """What the server keeps of clusters; σ_c² is −1 where nobody was active."""
        if self.clusters == "none":
            return {}
        count = self.cluster_count if self.clusters == "uncertainty" else max(self._groups, default=0) + 1
        return {
            "cluster_theta": torch.zeros(count, len(theta0), device=theta0.device),
            "cluster_sigma2": torch.full((count,), -1.0, device=theta0.device),
        }

    def _aggregate_clusters(
        self, server: State, uploads: Uploads, weights: Tensor, sigma2: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Renew the models of the clusters that were active; the mean over all that are known, and its weight."""
        if self.clusters == "group":
            cluster = torch.tensor(self._groups, device=weights.device)[uploads.ids.to(weights.device)]
        else:
            cuts = torch.linspace(0, 1, self.cluster_count + 1, device=weights.device)[1:-1]
            known = server["sigma2"][server["sigma2"] >= 0]
            cluster = torch.bucketize(sigma2, torch.quantile(known if len(known) else sigma2, cuts))
        models, sigmas = server["cluster_theta"].clone(), server["cluster_sigma2"].clone()
        for c in cluster.unique():
            rows = cluster == c
            inside = uploads.limit(weights[rows])
            models[c] = uploads.average(uploads["theta"][rows], inside)
            sigmas[c] = sigma2[rows].mean()
        server |= {"cluster_theta": models, "cluster_sigma2": sigmas}
        seen = sigmas >= 0
        mass = 1 / (server["sigma0_2"] + sigmas[seen]) if self.use_weights else torch.ones_like(sigmas[seen])
        mass = uploads.limit(mass)
        return uploads.average(models[seen], mass), mass.sum()
