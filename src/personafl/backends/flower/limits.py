"""What a site asks of the work behind an answer: enough samples that no single one shows, and an end to it.

Looked at is what is about to happen: the steps that the algorithm takes here, which may be its own, and the batches
that are drawn for them. docs/security.md says what this stops and what it does not.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from personafl.algorithms import Algorithm, Sent
from personafl.algorithms.base import Program
from personafl.algorithms.extras import batches_per_step, copies, sent_for_evaluation
from personafl.backends.flower.job import JobDescription, Order, Together, layout_of
from personafl.backends.flower.site_data import SiteSettings
from personafl.engines.base import Split
from personafl.engines.batches import BatchPlan
from personafl.engines.loop import LoopEngine
from personafl.engines.work import Result, Work
from personafl.errors import ConfigError
from personafl.kernels.per_sample import PerSample
from personafl.kernels.task import Objective, Task
from personafl.models import LoRA
from personafl.settings import Local
from personafl.states import Ints, State
from personafl.streams import Key
from personafl.training.privacy import Privacy

MOST_LAYERS = 1000
MOST_LOSS = 10.0
"""Of a sample in an evaluation: no sample of a classification adds more to a sum of losses."""


class SiteEngine(LoopEngine):
    """The loop engine within a site's limits.

    Attributes
    ----------
    settings
        The site's, which have the limits.
    sends
        Whether the algorithm sends anything up after training.
    """

    settings: SiteSettings
    sends = True

    def run(self, work: Work) -> Result:
        check_most(self.settings, "most_parameters", copies(work.program) * self.task.size, "parameters at once")
        return super().run(work)

    def protect_samples(self, by: PerSample | None) -> None:
        super().protect_samples(None if by is None else replace(by, fresh=True))

    def _plan(self, work: Work, keys: Key, steps: Ints) -> BatchPlan:
        if self.task.per_sample is not None:  # the operator knows the seed, and must not know who is in a batch
            keys = np.frombuffer(os.urandom(8 * len(keys)), np.uint64)
        program, count = work.program, int(steps[0])
        each = batches_per_step(program) * int(getattr(program, "inner_steps", 1))
        gradients = count * each * copies(program)
        check_most(self.settings, "most_steps", gradients, "steps")
        plan = super()._plan(work, keys, steps)
        if work.purpose == "train" and self.sends:
            # Self-FL's augmented form also sends the model from before its extra steps.
            early = max(count - int(getattr(program, "extra_steps", 0)), 1)
            for taken in {count, early}:
                for factor in self._factors_of(program):
                    rates = factor * self._rates(work.round, count)[:taken]
                    self._check_least(plan, taken, program, rates, self._keep(work, rates))
        return plan

    def _factors_of(self, program: Program) -> list[float]:
        """Those of the learning rate, of the parameters that are trained."""
        factors = sorted(set(self._rate_factors(program).tolist())) if self.local.groups else [1.0]
        return [factor for factor in factors if factor > 0]

    def _rates(self, round: int, steps: int) -> NDArray[np.float64]:
        """The learning rate of each step."""
        if self.local.schedule_over == "rounds":
            return np.full(steps, self.local.rate(max(round, 1)))
        return np.array([float(self.local.step_rate(step, steps)) for step in range(steps)])

    def _keep(self, work: Work, rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much each step leaves of those before: weight decay and proximal terms make training forget."""
        pull = float(work.sent.shared.get("pull", torch.zeros(())))  # FedAMP's; `check_sent` has seen that it is there
        decay = self.local.weight_decay + float(getattr(work.program, "mu", 0.0))
        return np.abs(1 - rates * decay) / np.abs(1 + rates * pull)

    def _check_least(
        self, plan: BatchPlan, steps: int, program: Program, rates: NDArray[np.float64], keep: NDArray[np.float64]
    ) -> None:
        here, samples, draws = self.settings, int(self.federation.sizes("train")[0]), batches_per_step(program)
        positions, counts = plan.positions[0, : steps * draws], plan.counts[0, : steps * draws]
        size, least = int(counts.max()), here.least_batch_size
        if size < least:
            why = f"trains with batches of at least {least} samples (least_batch_size), this run has {size}"
            raise ConfigError(f"site {here.id} {why}")
        if steps < here.least_steps:
            why = f"answers after at least {here.least_steps} steps (least_steps), this is {steps}"
            raise ConfigError(f"site {here.id} {why}")
        real = np.arange(positions.shape[1]) < counts[:, None]
        behind = len(np.unique(positions[real]))
        if behind < here.least_samples:
            why = f"answers with at least {here.least_samples} different training samples behind it (least_samples)"
            raise ConfigError(f"site {here.id} {why}: {steps} steps of {size} would use {behind} of its {samples}")
        of = None if plan.expected is None else float(plan.expected[0])
        share = max(largest_share(positions[d::draws], counts[d::draws], keep, rates, of) for d in range(draws))
        if self.local.optimizer != "sgd" or self.local.clip_norm is not None:
            share = max(
                share, 1 / max(int(counts.min()), 1)
            )  # they change the length of steps: one may be all that counts
        if not share * least <= 1 + 1e-9:
            why = f"answers where no sample weighs more than 1/{least} (least_batch_size): in these {steps} steps one "
            why += f"of its {samples} weighs {share:.2g}, as the last batch of an epoch is small or steps are forgotten"
            raise ConfigError(f"site {here.id} {why}; take more steps, another batch_size or less weight_decay")

    def evaluate(self, theta: Tensor, ids: Ints, split: Split) -> dict[str, NDArray[np.float64]]:
        """Sums to which no sample adds more than `MOST_LOSS`."""
        with torch.no_grad():
            sums = self._bounded.evaluate(theta if theta.dim() == 1 else theta[0], self._samples(int(ids[0]), split))
        return {name: value.double().cpu().numpy()[None] for name, value in sums.items()}

    def summed(self) -> dict[str, Objective]:
        return {"loss": self._bounded.objective, **self._bounded.metrics}

    @cached_property
    def _bounded(self) -> Task:
        """The task as samples are measured: nobody knows the scale of a regression, so its losses have no bound."""
        if not self.task.classification:
            return self.task

        exact = self.task.objective

        def loss(outputs: Tensor, y: Tensor) -> Any:
            found = exact(outputs, y)
            if isinstance(found, tuple):
                return found[0].clamp(max=MOST_LOSS), found[1]
            return found.clamp(max=MOST_LOSS)

        return Task(self.task.template, self.task.kind.with_own(loss))


def largest_share(
    positions: Ints,
    counts: Ints,
    keep: float | NDArray[np.float64],
    rates: float | NDArray[np.float64] = 1.0,
    of: float | None = None,
) -> float:
    """The largest weight of a single sample in a sum of steps, each a mean over its batch, of all steps' weight.

    Parameters
    ----------
    positions, counts
        A row and a number of samples for each step, as `BatchPlan` has them.
    keep
        How much each step leaves of those before it.
    rates
        The learning rate of each step.
    of
        What the sum over each batch is divided by; left out, the number of its samples.

    Examples
    --------
    >>> largest_share(np.array([[0, 1, 2, 3]]), np.array([4]), 1.0)
    0.25
    >>> largest_share(np.array([[0, 1, 2, 3], [4, 4, 4, 4]]), np.array([4, 1]), 1.0)
    0.5
    >>> largest_share(np.array([[0, 1, 2, 3], [4, 4, 4, 4]]), np.array([4, 1]), 1.0, of=4.0)
    0.2
    """
    left = np.broadcast_to(np.asarray(keep, np.float64), len(counts))[:0:-1]
    with np.errstate(over="ignore"):
        weights = rates * np.cumprod(np.concatenate([[1.0], left]))[::-1]
    real = np.arange(positions.shape[1]) < counts[:, None]
    by_sample = weights / (counts if of is None else of)
    each = np.bincount(positions[real] - positions.min(), (real * by_sample[:, None])[real])
    return float(each.max() / (by_sample * counts).sum())


def check_local(here: SiteSettings, local: Local, samples: int) -> None:
    """Refuse more steps than a site takes, in numbers of any size."""
    size = min(int(local.batch_sizes(np.array([samples]))[0]), samples)
    steps = (local.steps or 20) if local.epochs is None else local.epochs * math.ceil(samples / max(size, 1))
    check_most(here, "most_steps", steps, "steps")


def check_model(here: SiteSettings, job: JobDescription, constants: State) -> None:
    """Refuse a model that is too large, before it takes any memory."""
    model = job.make_model(here.id, here.weights)
    if isinstance(model, LoRA):
        return  # its weights are the site's own, and its rank has a limit
    layers = [int(getattr(model, "layers", 1)), *(len(v) for v in vars(model).values() if isinstance(v, tuple))]
    if max(layers) > MOST_LAYERS:
        raise ConfigError(f"site {here.id} trains models of at most {MOST_LAYERS} layers, this one has {max(layers)}")
    with torch.device("meta"):
        made = model.build(job.shape, job.outputs, constants)  # type: ignore[arg-type]
    check_most(here, "most_parameters", sum(p.numel() for p in made.parameters()), "parameters")


def check_sent(here: SiteSettings, algorithm: Algorithm, theta0: Tensor, sent: Sent, evaluating: bool) -> None:
    """Refuse what the site's own code of the algorithm would not send, by names, types and shapes."""
    server, first = algorithm.new_server(theta0, 1), torch.zeros(1, dtype=torch.int64)
    meant = sent_for_evaluation(algorithm, server, first) if evaluating else algorithm.send(server, first)
    if (layout_of(sent.shared), layout_of(sent.each)) != (layout_of(meant.shared), layout_of(meant.each)):
        raise ConfigError(
            f"site {here.id}: the server sends {', '.join([*sent.shared, *sent.each]) or 'nothing'}, by this site's "
            f"code {algorithm.name} sends {', '.join([*meant.shared, *meant.each]) or 'nothing'}, or other shapes"
        )


def check_common(here: SiteSettings, algorithm: Algorithm, theta0: Tensor, sent: Sent, common: Tensor | None) -> None:
    """Refuse a model for everybody that is not the one that was sent: an evaluation is about one model, not two."""
    meant = algorithm.global_model({**algorithm.new_server(theta0, 1), **sent.shared})
    if not (meant is common if meant is None or common is None else torch.equal(meant, common)):
        raise ConfigError(f"site {here.id}: the global model to evaluate is not the one that was sent")


def check_together(here: SiteSettings, order: Order) -> None:
    """Refuse to answer alone, or in a sum over too few, where the run's job or this site says more."""
    together = order.together
    if together is None and order.job.secure is not None:
        raise ConfigError(f"site {here.id}: this run has [secure], and its answer is asked for alone")
    answers = 1 if together is None else together.threshold
    if answers < here.least_together:
        asked = "its answer alone: it has no [secure]" if together is None else f"a sum of {answers} or more"
        raise ConfigError(
            f"site {here.id} answers in a sum over at least {here.least_together} sites (least_together), this run "
            f"asks for {asked}"
        )


def noise_that_counts(here: SiteSettings, privacy: Privacy | None, together: Together | None) -> float:
    """The noise multiplier that a site may rely on.

    Of a sum that is all of its noise, where the site insists on sums; else its own share is all that it knows of.
    """
    noise = privacy.own_noise if privacy else 0.0
    return noise if together is None or here.least_together > 1 else noise / math.sqrt(together.noise_sharers)


def check_most(here: SiteSettings, key: str, asked: int, what: str) -> None:
    """Refuse what is more than a site's setting `key` allows."""
    most = getattr(here, key)
    if asked > most:
        raise ConfigError(f"site {here.id} takes at most {most:,} {what} ({key}), this run asks for {asked:,}")
