"""Self-FL's conventions in the synthetic study, chosen on validation data for each cohort size.

With C = 0.1 a cohort is two clients, so S_m over the cohort is one other client. Beside what is printed stands a choice
that knows of nothing but the clients' data: each client keeps a fifth of its samples back, both conventions are
trained on the rest, and each federation takes the one whose personal models are nearer to the means of the samples that
were kept back. It then trains with all samples. The candidates: as printed (sums, S_m over the cohort, smoothing by the
activity rate), and means with S_m over all known clients and smoothing 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from personafl.streams import generator
from personafl_papers.data.gaussian import Gaussian
from personafl_papers.tables.selffl_synthetic import Bools, Floats, Method, Problem, simulate, stacked

PRINTED, KNOWN = "Self-FL paper, online", "Self-FL, S over all known, means, smoothing 1"
CHOSEN = "Self-FL, either by validation data"
KEPT_BACK = 0.2


def all_known(printed: Method) -> Method:
    """The other candidate."""
    algorithm, variances = printed
    return replace(algorithm, variance="mean", scope="all", smoothing=1.0), variances  # type: ignore[call-arg]


def held_back(problem: Problem, case: int, seed: int) -> tuple[Problem, Floats, Floats]:
    """The same clients without a part of their samples; the means of that part, and how many samples are in it.

    Given the mean z of N samples, that of n of them is normal around z with variance σ² (1/n − 1/N).
    """
    spread = Gaussian.case(case).sigma2
    kept = np.maximum(np.floor(KEPT_BACK * problem.samples), 1.0)
    rest = problem.samples - kept
    noise = generator(seed, "selffl-synthetic/validation", case).standard_normal(problem.z.shape)
    means = problem.z + np.sqrt(spread * (1 / kept - 1 / problem.samples)) * noise
    z = (problem.samples * problem.z - kept * means) / rest
    return replace(problem, samples=rest, sigma2=spread / rest, z=z), means, kept


def choose(printed: Method, problem: Problem, cohorts: Bools, case: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """|error| of the personal and of the server's models, (rounds, R) each, and who chose the other one, (R,)."""
    candidates = (printed, all_known(printed))
    part, means, kept = held_back(problem, case, seed)
    losses = []
    for algorithm, variances in candidates:
        *_, (own, _) = stacked(algorithm, replace(part, variances=variances), cohorts)
        losses.append((kept * (own - means) ** 2).sum(1) / kept.sum(1))
    other = losses[1] < losses[0]
    made = [simulate(candidate, problem, cohorts) for candidate in candidates]
    personal, server = (np.where(other, made[1][which], made[0][which]) for which in (0, 1))
    return personal, server, other
