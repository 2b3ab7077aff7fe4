"""Are the oracles worth anything? Break every algorithm on purpose, and see that a test of its own notices.

    python tests/mutations.py [--only fedamp] [--markdown] [--source FOLDER]

Each mutation replaces one piece of an algorithm's file in a copy of the package and runs that algorithm's test file
on the copy. A mutation that no test notices is a failure, and so is a test file that fails on the unbroken package.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
WORKERS = 2
LIMIT = 600  # seconds for one test file

# Imported before pytest runs, so that a copy which is not the one under test cannot go unnoticed.
PROGRAM = """
import sys, pathlib, personafl
if not pathlib.Path(personafl.__file__).is_relative_to(sys.argv[1]):
    sys.exit(f"personafl comes from {personafl.__file__}, not from {sys.argv[1]}")
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Mutation:
    """A piece of an algorithm's file, what takes its place, and what that breaks."""

    algorithm: str
    file: str
    original: str
    mutated: str
    breaks: str
    folder: str = "algorithms"

    @property
    def path(self) -> Path:
        """The file, in the package."""
        return Path(self.folder) / f"{self.file}.py"

    @property
    def test(self) -> str:
        """The test files, parted by a space: test_NAME.py and, where there is one, test_NAME_edges.py, for the name of
        the file; or of the algorithm, where the file is shared by several and has no test of its own."""
        for name in (self.file, self.algorithm.replace("-", "_")):
            files = [f"tests/{self.folder}/test_{name}.py", f"tests/{self.folder}/test_{name}_edges.py"]
            if found := [file for file in files if (ROOT / file).exists()]:
                return " ".join(found)
        raise ValueError(f"{self.algorithm} has no tests/{self.folder}/test_{self.file}.py")


def _of(algorithm: str, file: str, *rows: tuple[str, str, str], folder: str = "algorithms") -> list[Mutation]:
    return [Mutation(algorithm, file, original, mutated, breaks, folder) for breaks, original, mutated in rows]


AWAITED: set[str] = set()  # algorithms whose oracles, and so whose mutations, are still to come

SLOPE = "(alpha - ctx.lr * torch"
KEPT = 'return {"theta": y}, {"theta": y}'
FORWARD = "imitated = -(soft * F.log_softmax(outputs"
WEIGHTED = 'return {"theta": Mean(weights=self.weights, relative_to="theta")}'

MUTATIONS: list[Mutation] = [
    *_of(
        "fedem", "fedem",
        ("E-step: shares ignored", "shares.clamp(min=torch.finfo(shares.dtype).tiny).log() - l", "0 * shares - l"),
        ("E-step: sign of the loss", ".log() - losses(features, y)[0]", ".log() + losses(features, y)[0]"),
        ("E-step: at the present components", "y, received, shares).detach()", "y, features, shares).detach()"),
        ("M-step: shares stay", 'return {"shares": carry["shares"]}', 'return {"shares": own["shares"]}'),
        ("M-step: responsibilities dropped", "(q * values)", "values"),
        ("components: all alike", "several_starts(first, self.c", "several_starts(0 * first, self.c"),
    ),
    *_of(
        "separate", "mlp",  # it has no step of its own, so all are taken there
        ("gradient: sign flipped", "alpha=-lr", "alpha=lr"),
        ("gradient: dropped", "alpha=-lr", "alpha=0"),
        folder="kernels",
    ),
    *_of(
        "separate", "separate",
        ("model: frozen", 'return {"theta": carry["theta"]}, {}', 'return {"theta": own["theta"]}, {}'),
    ),
    *_of(
        "fedavg", "fedavg",
        ("upload: sign flipped", KEPT, 'return {"theta": y}, {"theta": -y}'),
        ("upload: what was sent", KEPT, 'return {"theta": y}, {"theta": sent["theta"]}'),
        ("weights by samples: dropped", WEIGHTED, 'return {"theta": Mean(relative_to="theta")}'),
        ("weights: always by samples", WEIGHTED, 'return {"theta": Mean(weights="samples", relative_to="theta")}'),
        ("y_i: frozen", KEPT, 'return {"theta": own["theta"]}, {"theta": y}'),
        ("never active: θ0 for w", 'return {"theta": sent["theta"]}\n', 'return {"theta": theta0}\n'),
    ),
    *_of(
        "fedavg-ft", "fedavg",
        ("fine-tuning: dropped", "return FineTune(self.fine_tune_steps)", "return FineTune(0)"),
        ("fine-tuning: a step too many", "torch.full_like(ctx.steps, self.steps)",
         "torch.full_like(ctx.steps, self.steps + 1)"),
        ("fine-tuned model: frozen", 'return {"theta": carry["theta"]}, {}', 'return {"theta": sent["theta"]}, {}'),
    ),
    *_of(
        "fedprox", "fedprox",
        ("proximal term: sign flipped", "proximal=(self.mu,", "proximal=(-self.mu,"),
        ("proximal term: dropped", ', proximal=(self.mu, sent["theta"])', ""),
        ("proximal term: no gradient (anchor follows y)", '(self.mu, sent["theta"])', '(self.mu, carry["theta"])'),
        ("gradient: dropped", "grad, proximal", '0 * grad(carry["theta"]), proximal'),
    ),
    *_of(
        "fedprox-ft", "fedprox",
        ("fine-tuning: dropped", "class FedProxFT(FineTuned, FedProx)", "class FedProxFT(FedProx, FineTuned)"),
        ("range of μ: unchecked", "        FedProx.__post_init__(self)\n", ""),
        ("proximal term of stage 1: dropped", ', proximal=(self.mu, sent["theta"])', ""),
    ),
    *_of(
        "scaffold", "scaffold",
        ("correction: sign flipped", 'sent["c"] - own["c"]}', 'own["c"] - sent["c"]}'),
        ("correction: dropped", ' + carry["correction"]', ""),
        ("c_i: frozen", 'return {"c": c, ', 'return {"c": own["c"], '),
        ("c: frozen", 'server["c"] + share * uploads.mean("delta_c")', 'server["c"]'),
        ("c_i⁺: sign of (w − y) flipped", "(w - y) / (ctx.steps", "(y - w) / (ctx.steps"),
        ("c: over the cohort, not over all", "share * uploads", "uploads"),
    ),
    *_of(
        "fedavgm", "fedopt",
        ("momentum: dropped", 'self.momentum * server["m"] + (', "("),
        ("momentum: dampened", "+ (uploads.mean", "+ (1 - self.momentum) * (uploads.mean"),
        ("rate: dropped", "w + self.server_lr * m, ", "w + m, "),
        ("Δ: sign flipped", '(uploads.mean("theta") - w)', '(w - uploads.mean("theta"))'),
    ),
    *_of(
        "fedadagrad", "fedopt",
        ("v: the last square alone", "return v + square", "return square"),
        ("τ: dropped", "(v.sqrt() + self.tau)", "v.sqrt()"),
        ("v: starts at 0", "torch.full_like(theta0, self.tau**2)", "torch.zeros_like(theta0)"),
        ("v: not rooted", "v.sqrt()", "v"),
    ),
    *_of(
        "fedadam", "fedopt",
        ("m: not dampened", "(1 - self.beta1) * delta", "delta"),
        ("v: of m in place of Δ", "delta.square()", "m.square()"),
        ("v: frozen", "return self.beta2 * v + (1 - self.beta2) * square", "return v"),
        ("w: Δ in place of m", "self.server_lr * m / (v", "self.server_lr * delta / (v"),
    ),
    *_of(
        "fedyogi", "fedopt",
        ("sign: flipped", "torch.sign(v - square)", "torch.sign(square - v)"),
        ("sign: dropped", " * torch.sign(v - square)", ""),
        ("v: that of adam", "square * torch.sign(v - square)", "(v - square)"),
    ),
    *_of(
        "feddyn", "feddyn",
        ("tilt: sign flipped", '- carry["g"]', '+ carry["g"]'),
        ("tilt: dropped", ' - carry["g"]', ""),
        ("proximal term: dropped", ', proximal=(self.alpha, sent["theta"])', ""),
        ("g_i: frozen", '{"g": own["g"] - self.alpha * (theta - sent["theta"]), ', '{"g": own["g"], '),
        ("g_i: sign flipped", 'own["g"] - self.alpha', 'own["g"] + self.alpha'),
        ("h: over the cohort, not over all", "self.alpha * share * (mean", "self.alpha * (mean"),
        ("w: h dropped", "mean - h / self.alpha", "mean"),
    ),
    *_of(
        "qffl", "qffl",
        ("weight F^q: dropped", '{"delta": loss**self.q * u', '{"delta": u'),
        ("weight: F^(q+1)", '{"delta": loss**self.q * u', '{"delta": loss ** (self.q + 1) * u'),
        ("h: without ‖u‖²", "self.q * loss ** (self.q - 1) * u.square().sum() + ", ""),
        ("h: ‖u‖ not squared", "u.square().sum()", "u.norm()"),
        ("L: always 1/η", "1 / ctx.lr if self.lipschitz is None else self.lipschitz", "1 / ctx.lr"),
        ("loss: after training", 'ctx.training(sent["theta"])["loss"]},', 'ctx.training(own["theta"])["loss"]},'),
    ),
    *_of(
        "afl", "afl",
        ("λ: sign flipped", "lam + self.lambda_lr * slope", "lam - self.lambda_lr * slope"),
        ("λ: frozen", "onto_simplex(lam + self.lambda_lr * slope)", "lam"),
        ("λ: not projected", "onto_simplex(lam + self.lambda_lr * slope)", "lam + self.lambda_lr * slope"),
        ("weights: not bounded", " / weights.sum().clamp(min=1.0)", ""),
        ("who never told: loss 0", "torch.where(told > 0, loss, (told * loss).sum() / told.sum())", "loss"),
        ("projection: τ of all coordinates", "(ordered > tau).sum() - 1", "(ordered > -torch.inf).sum() - 1"),
    ),
    *_of(
        "fedpa", "fedpa",
        ("covariance: the identity", "x = x - factor * (u @ x) * v", "x = x - 0 * factor * (u @ x) * v"),
        ("γ: without (t − 1)/t", "rho * (t - 1) / t", "rho"),
        ("shrinkage: factor 1/ρ_ℓ dropped", "(1 + (known.to(w).sum() - 1) * rho) * inverse", "inverse"),
        ("samples: from the first step", "burn_in = ctx.steps // 2", "burn_in = 0 * ctx.steps"),
        ("Δ: sign flipped", "w - posterior_delta(", "w + posterior_delta("),
        ("burn-in rounds: one too few", "ctx.round <= self.burn_in_rounds", "ctx.round < self.burn_in_rounds"),
        ("windows: empty ones count", 'carry["counts"] > 0', 'carry["counts"] >= 0'),
    ),
    *_of(
        "fedbe", "fedbe",
        ("teacher: the drawn models alone", 'teachers = [sent["theta"], *sent["models"].unbind(0)]',
         'teachers = [*sent["models"].unbind(0)] or [sent["theta"]]'),
        ("teacher: the mean model alone", 'teachers = [sent["theta"], *sent["models"].unbind(0)]',
         'teachers = [sent["theta"]]'),
        ("distillation: with labels", "objective=imitation, teacher=teacher)", ")"),
        ("distillation: sign flipped", "return -(teacher", "return (teacher"),
        ("distillation: at the local rate", ", self.distill_lr)", ")"),
        ("variance: around the w that was sent", ' - (mean - server["theta"]).square()).clamp', ").clamp"),
        ("models: variance for deviation", 'server["variance"].sqrt()', 'server["variance"]'),
        ("models: the same in each round", 'int(server["round"])', "0"),
    ),
    *_of(
        "apfl", "apfl",
        ("gradient at v̄: taken at v", "grad(torch.lerp(w, v, alpha))", "grad(v)"),
        ("step of v: sign flipped", "alpha * at_mixture)", "-alpha * at_mixture)"),
        ("step of v: factor α dropped", '"v", alpha * at_mixture)', '"v", at_mixture)'),
        ("adaptive α: sign flipped", SLOPE, "(alpha + ctx.lr * torch"),
        ("adaptive α: frozen", SLOPE, "(alpha + 0 * torch"),
        ("v: frozen", '{"v": carry["v"], "alpha"', '{"v": own["v"], "alpha"'),
    ),
    *_of(
        "ditto", "ditto",
        ("pull: sign flipped", "proximal=(self.lam,", "proximal=(-self.lam,"),
        ("pull: dropped", ', proximal=(self.lam, sent["theta"])', ""),
        ("v: frozen", 'return {"v": carry["v"]}', 'return {"v": own["v"]}'),
        ("v: starts from w in every round", '"v": own["v"]}, ctx.steps', '"v": sent["theta"]}, ctx.steps'),
        ("v: starts from θ0", 'return {"v": sent["theta"]}', 'return {"v": theta0}'),
    ),
    *_of(
        "pfedme", "pfedme",
        ("proximal term: sign flipped", "proximal=(self.lam, w)", "proximal=(-self.lam, w)"),
        ("proximal term: dropped", ", proximal=(self.lam, w)", ""),
        ("step of w_i: sign flipped", "move(w, w - theta", "move(w, theta - w"),
        ("personalized model: w_i for θ", '{"theta": carry["theta"]}, {', '{"theta": carry["w"]}, {'),
        ("θ: frozen", '{"theta": carry["theta"]}, {', '{"theta": own["theta"]}, {'),
    ),
    *_of(
        "perfedavg", "perfedavg",
        ("inner step: sign flipped", "w - self.alpha * grad(w, batch=0)", "w + self.alpha * grad(w, batch=0)"),
        ("inner step: dropped", "w - self.alpha * grad(w, batch=0)", "w"),
        ("curvature: sign flipped", "direction - self.alpha * curvature", "direction + self.alpha * curvature"),
        ("curvature: dropped", "direction = direction - self.alpha * curvature", "pass"),
        ("adapted model: frozen", "Adapt(self.adapt_steps, self.alpha)", "Adapt(0, self.alpha)"),
        ("adapted model: local learning rate for α", "Adapt(self.adapt_steps, self.alpha)",
         "Adapt(self.adapt_steps)"),
    ),
    *_of(
        "fedper", "fedper",
        ("base: sign flipped", 'return {"head": head}, {"base": base}', 'return {"head": head}, {"base": -base}'),
        ("base: what was sent", '{"head": head}, {"base": base}', '{"head": head}, {"base": sent["base"]}'),
        ("weights by samples: dropped", 'Mean(weights=self.weights, relative_to="base")', 'Mean(relative_to="base")'),
        ("head: frozen", 'return {"head": head}, {"base": base}', 'return {"head": own["head"]}, {"base": base}'),
    ),
    *_of(
        "fedper", "heads",
        ("head: everything but the head", "if self.head_names else own", "if self.head_names else not own"),
        ("head: counted from the front", "last_layers(job.layers, self.head)",
         "last_layers(job.layers[::-1], self.head)[::-1]"),
    ),
    *_of(
        "fedper", "pieces",
        ("head: put back at the end", "queues[mine].pop(0) for _, mine in self.sizes",
         "queues[mine].pop(0) for _, mine in sorted(self.sizes, key=lambda piece: piece[1])"),
    ),
    *_of(
        "fedrep", "fedrep",
        ("order: the body first", "ctx.step < self.head_steps", "ctx.step >= self.head_steps"),
        ("head: a step too few", "ctx.step < self.head_steps", "ctx.step < self.head_steps - 1"),
        ("body: trained under no head", '"body", carry, grad, ctx)',
         '"body", carry | {"head": 0 * carry["head"]}, grad, ctx)'),
    ),
    *_of(
        "fedrep", "heads",
        ("head: frozen", 'return {"head": carry["head"]}', 'return {"head": own["head"]}'),
        ("weights: always equal", "Mean(weights=self.weights,", "Mean("),
        ("step: the other part", 'carry["head"])))[at]', 'carry["head"])))[not at]'),
        ("rates: the other part's", "self._pieces.split(ctx.factors)[head]",
         "self._pieces.split(ctx.factors)[not head]"),
        ("head: may be the whole model", "parts != {True}", "True"),
    ),
    *_of(
        "fedbabu", "fedbabu",
        ("head: trained", 'self.descend("body", carry, grad, ctx)', 'self.descend("head", carry, grad, ctx)'),
        ("fine-tuning: dropped", "torch.full_like(ctx.steps, self.steps)", "torch.zeros_like(ctx.steps)"),
        ("fine-tuning: the head alone, always", 'self.part == "head"', "True"),
        ("fine-tuning: the body alone", 'stage1.descend("head"', 'stage1.descend("body"'),
        ("global model: another head", 'server["head0"])', '0 * server["head0"])'),
    ),
    *_of(
        "lg-fedavg", "lg_fedavg",
        ("head: what was sent", '{"head": head}', '{"head": sent["head"]}'),
        ("representation: frozen", 'return {"body": body}', 'return {"body": own["body"]}'),
        ("weights by samples: dropped", "Mean(weights=self.weights,", "Mean("),
        ("representation: shared, the head kept", 'self._pieces.split(carry["theta"])',
         'self._pieces.split(self._pieces.join(own["body"], carry["theta"][-len(sent["head"]):]))'),
    ),
    *_of(
        "fedrod", "fedrod",
        ("class shares: dropped", "outputs + prior", "outputs + 0 * prior"),
        ("class shares: sign flipped", "outputs + prior", "outputs - prior"),
        ("personal head: fitted alone", "body, generic + carry", "body, 0 * generic + carry"),
        ("personal head: frozen", 'return {"head": carry["head"]}', 'return {"head": own["head"]}'),
        ("generic model: takes the personal gradient too", 'ctx.descend(carry, "theta", balanced)',
         'ctx.descend(carry, "theta", balanced + grad(whole))'),
        ("personalized model: the generic one", 'generic + own["head"]', 'generic + 0 * own["head"]'),
        ("weights by samples: dropped", "Mean(weights=self.weights,", "Mean("),
    ),
    *_of(
        "fedala", "fedala",
        ("weights: sign flipped", '(carry["W"] - self.weight_lr', '(carry["W"] + self.weight_lr'),
        ("weights: not clipped", ".clamp(0.0, 1.0)", ""),
        ("weights: frozen", '"W": torch.where(weighing, W, carry["W"])', '"W": carry["W"]'),
        ("mixture: the wrong way round", "mine + (received - mine) * W", "received + (mine - received) * W"),
        ("mixture: forgotten in the next round", '"W": carry["W"], "rounds"', '"W": own["W"], "rounds"'),
        ("start: one phase only", 'torch.where(own["rounds"] > 1, self.weight_steps', "torch.where("
         'own["rounds"] > 9, self.weight_steps'),
        ("optimizer: does not wait", "mixed = {**waiting,", "mixed = {**trained,"),
    ),
    *_of(
        "heterofl", "heterofl",
        ("gradient: of the whole network", " * scale * self._has(ratio, theta))", " * scale)"),
        ("scaler: half of the chain rule", "grad(scale * theta) * scale", "grad(scale * theta)"),
        ("scaler: never", "if self.scaler else", "if False else"),
        ("average: over all clients", "mean_of_holders(theta, mean, lacking)", "mean"),
        ("average: where nobody holds, the mean", "torch.where(holding > 1e-6, spread, sent)", "0 * sent + spread"),
        ("weights: always equal", 'samples if self.weights == "samples" else torch', "torch"),
        ("widths: the same for all", "self.ratios[place[name] % len(self.ratios)]", "self.ratios[0]"),
    ),
    *_of(
        "heterofl", "widths",
        ("inputs: not narrowed", "least = torch.maximum(least,", "torch.maximum(least,"),
        ("flattened inputs: half a channel", "if flat else _by_share(shape[1])",
         "if False else _by_share(shape[1])"),
        ("outputs: narrowed too", "if module == last else _by_share(shape[0])", "if False else _by_share(shape[0])"),
    ),
    *_of(
        "lotteryfl", "lotteryfl",
        ("pruning: the largest", "theta.abs(), torch.inf)", "-theta.abs(), torch.inf)"),
        ("pruning: whatever the accuracy", "good & (1 - left", "(1 - left"),
        ("pruning: without an end", "self.target)\n", "9.0)\n"),
        ("rewinding: dropped", 'own["theta0"] * mask, theta)', "theta * mask, theta)"),
        ("momentum: moves what is pruned", 'carry["theta"].mul_(carry["mask"])', "pass"),
        ("average: over all clients", 'uploads.mean("lacks"))', '0 * uploads.mean("lacks"))'),
        ("biases: pruned too", "len(shape) > 1 for", "len(shape) > 0 for"),
    ),
    *_of(
        "fedbn", "fedbn",
        ("base: sign flipped", 'return {"norms": norms}, {"base": base}', 'return {"norms": norms}, {"base": -base}'),
        ("norms: frozen", 'return {"norms": norms}', 'return {"norms": own["norms"]}'),
        ("norms: everything else is kept", "own = [bool(re.search", "own = [not bool(re.search"),
        ("norms: all, where batch is asked for", 'if self.norms == "batch" else "Norm"\n', 'if False else "Norm"\n'),
        ("weights by samples: dropped", 'Mean(weights=self.weights, relative_to="base")', 'Mean(relative_to="base")'),
    ),
    *_of(
        "moon", "moon",
        ("contrast: sign flipped", "(negative - positive)", "(positive - negative)"),
        ("contrast: dropped", "return self.mu * F", "return 0 * F"),
        ("temperature: dropped", "/ self.temperature)", ")"),
        ("previous model: the one that was sent", '"previous": own["theta"]', '"previous": sent["theta"]'),
        ("global features: of the model itself", 'grad.features(sent["theta"])', 'grad.features(carry["theta"])'),
        ("loss: the contrast alone", "added_to_loss: ClassVar[bool] = True", "added_to_loss: ClassVar[bool] = False"),
    ),
    *_of(
        "fedproto", "fedproto",
        ("pull to prototypes: dropped", "Alignment(self.lam,", "Alignment(0.0,"),
        ("pull to prototypes: sign flipped", "Alignment(self.lam,", "Alignment(-self.lam,"),
        ("prototypes: sums that are not divided", "new = sums / torch", "new = sums * torch"),
        ("prototypes: forgotten", "server[\"prototypes\"])\n", "0.0)\n"),
        ("prototypes: of the model before training", "mean(self._by_class, carry", "mean(self._by_class, own"),
        ("weights by samples: dropped", 'weights="samples"', 'weights="equal"'),
        ("model: frozen", 'return {"theta": carry["theta"]}, {"by', 'return {"theta": own["theta"]}, {"by'),
    ),
    *_of(
        "fedpac", "fedpac",
        ("alignment: dropped", "Alignment(self.lam,", "Alignment(0.0,"),
        ("alignment: sign flipped", "Alignment(self.lam,", "Alignment(-self.lam,"),
        ("centroids: of the body that was sent", "self._by_class, theta)}", """self._by_class,
            self._pieces.join(sent["body"], carry["head"]))}"""),
        ("combination: the mean of all heads", "beta / beta.sum()", "np.full(len(h), 1 / len(h))"),
        ("combination: variance dropped", "np.diag(v) + apart", "1e-9 * np.diag(v) + apart"),
        ("combination: bias dropped", "np.diag(v) + apart @ apart.T", "np.diag(v)"),
        ("variance: not divided by samples", ".clamp(min=0) / ctx.samples", ".clamp(min=0) * (ctx.samples > 0)"),
        ("heads: frozen", "heads.index_copy_", "heads.clone().index_copy_"),
    ),
    *_of(
        "knnper", "knnper",
        ("votes: all the same", "weight = (near - near[:, :1]).exp() * ", "weight = 1.0 * "),
        ("neighbours: the farthest", "(-distance / self.scale)", "(distance / self.scale)"),
        ("scale: dropped", "(-distance / self.scale)", "(-distance)"),
        ("mixture: shares exchanged", "torch.where(found[-1:] > 0, best", "torch.where(found[-1:] > 0, 1 - best"),
        ("choice: the worst share", "torch.argmax(found[:-1] - 1e-6 * grid", "torch.argmin(found[:-1] + 1e-6 * grid"),
        ("memory: the first samples", "weight.sum().clamp(min=self.rows) / self.rows", "weight.new_ones(())"),
        ("empty places: vote too", "masked_fill(labels == 0, -1e30)", "masked_fill(labels < 0, -1e30)"),
    ),
    *_of(
        "fedamp", "fedamp",
        ("attention: local training only (ξ = I)", "with_own(closeness.mul_(alpha), ids), pull",
         "with_own(closeness.mul_(0 * alpha), ids), pull"),
        ("factor: that of the printed equation (1)", "self.lam / alpha", "2 * self.lam / alpha"),
        ("α_k: no decay", "alpha = alpha * self.alpha_decay **", "alpha = alpha * 1.0 **"),
        ("α_k: λ/K for λ/√K", "(self.horizon or 1) ** 0.5)", "(self.horizon or 1) ** 1.0)"),
        ("α_k: λ for λ/k", "return alpha / (round + 1) if", "return alpha if"),
        ("α_k of the theorems: its bound unchecked", "first <= bound", "(self.alpha or 0) <= bound"),
        ("objective: each pair twice", ".double().triu(1)", ".double()"),
        ("objective: λ is the pull", "lam = self.pull * alpha if", "lam = self.pull + 0 * alpha if"),
        ("objective: in other units", ".triu(1) / sigma.double()", ".triu(1)"),
    ),
    *_of(
        "fedamp", "message_passing",
        ("pull to u: sign flipped", 'add_(rate * sent["u"])', 'sub_(rate * sent["u"])'),
        ("pull to u: dropped", 'rate = ctx.rates * sent["pull"]', 'rate = 0 * sent["pull"]'),
        ("models of the server: frozen", 'models.index_copy_(0, uploads.ids.to(models.device), uploads["theta"])',
         "models = models.clone()"),
        ("w_i: frozen", "return self._kept(w, sent), ", "return own, "),
        ("starts: all alike", "several_starts(theta0, clients, self._sizes)", "several_starts(theta0, 1, self._sizes)"),
        ("starts: of other layers", "size for _, size in job.layers", "2 * size for _, size in job.layers[:0]"),
        ("u_i: w_i in its place", 'return own["u"] if', 'return own["theta"] if'),
        ("u_i: that after the round", '{"theta": w, "u": sent["u"]}', '{"theta": w, "u": w}'),
    ),
    *_of(
        "fedamp", "attention",
        ("A′: sign of the distance flipped", "x.neg_().exp_()", "x.exp_()"),
        ("A′: uniform", "x.neg_().exp_()", "x.mul_(0).exp_()"),
        ("A′ of MCP: grows", "x.div_(-a)", "x.div_(a)"),
        ("A′ of MCP: below 0 far away", "x.div_(-a).add_(1).clamp_(min=0)", "x.div_(-a).add_(1)"),
        ("A′ of SCAD: another slope", "add_(a).div_(a - 1)", "add_(a).div_(a)"),
        ("A′ of SCAD: above 1 nearby", ".clamp_(0, 1)", ".clamp_(min=0)"),
        ("A: linear", "-torch.expm1(-x)", "x"),
        ("A of MCP: another curve", "far.square() / (2 * a)", "far.square() / (3 * a)"),
        ("A of MCP and SCAD: no end", "far = x.clamp(max=a)", "far = x"),
        ("A of SCAD: jumps", "1 + ((a - 1) ** 2", "((a - 1) ** 2"),
        ("distances: not centred", "(block - centre for block", "(block + 0 * centre for block"),
        ("cosine: dot product instead", "(a @ b.T).div_(of_a[:, None]).div_(of_b)", "a @ b.T"),
    ),
    *_of(
        "fedamp", "training_loss",
        ("objective: of another model", 'ctx.training(own["theta"])', 'ctx.training(0 * own["theta"])'),
        ("objective: not the loss", 'own["theta"])["loss"]', 'own["theta"])["loss"] ** 2'),
    ),
    *_of(
        "heurfedamp", "fedamp",
        ("similarity: sign flipped", "scale * cosine", "-scale * cosine"),
        ("similarity: dropped", "scale * cosine", "0 * cosine"),
        ("own weight: dropped", "(1 - self.self_weight) * attention", "attention"),
        ("own model: among the others", "torch.where(other, scale * cosine, -torch.inf)", "scale * cosine"),
    ),
    *_of(
        "cfl", "cfl",
        ("split: those that are alike are parted", "(1 - cosines).clamp", "(1 + cosines).clamp"),
        ("split: before the mean is stationary", "mean.norm() >= eps1 or ", ""),
        ("split: where nobody wants to go on", " or lengths.max() <= eps2", ""),
        ("split: whatever the angles", "> self.gamma else None", "> 0 * self.gamma else None"),
        ("linkage: complete for single", "self.linkage)", '"complete")'),
        ("parts: both get the mean of all", "_mean(y[part], weights[part])", "_mean(y, weights)"),
        ("weights by samples: dropped", 'uploads.samples.double() if self.weights == "samples" else', ""),
        ("who comes late: to those unlike it", "0 if best[0] >= best[1] else 1", "1 if best[0] >= best[1] else 0"),
        ("newcomer: the first cluster's model", "if upload else 0", "if False else 0"),
    ),
    *_of(
        "ifca", "ifca",
        ("choice: the largest loss", "losses.argmin()", "losses.argmax()"),
        ("choice: always the first", "losses.argmin()[None]", "0 * losses.argmin()[None]"),
        ("upload: to all models", '"models": chosen[:, None] * carry["theta"]',
         '"models": torch.ones_like(chosen)[:, None] * carry["theta"]'),
        ("mean: not divided by the share", " / share.clamp(min=1e-30)", ""),
        ("a model that nobody chose: becomes 0", 'torch.where(share > 0, renewed, server["models"])', "renewed"),
        ("weights by samples: dropped", '"models": Mean(weights=self.weights, ', '"models": Mean('),
        ("models: all start alike", "several_starts(theta0, self.clusters, self._sizes)",
         "theta0.expand(self.clusters, -1).clone()"),
    ),
    *_of("ifca", "starts", ("models: all start alike", "std * torch.randn", "0 * std * torch.randn")),
    *_of(
        "fedfomo", "fedfomo",
        ("gain: sign flipped", '[before - ctx.validation(model)["loss"]', '[ctx.validation(model)["loss"] - before'),
        ("gain: not over the distance", "less / gap.norm().clamp(min=1e-12)", "less"),
        ("weights: negative ones too", "gains.clamp(min=0)", "gains.clone()"),
        ("weights: do not sum to 1", "positive / positive.sum().clamp(min=1e-30)", "positive"),
        ("θ_i: others' models alone", "theta + weights @ torch.stack(apart)", "weights @ sent[\"models\"]"),
        ("affinity: frozen", '"affinity": affinity, ', ""),
        ("candidates: the least liked", "np.argsort(-liking", "np.argsort(liking"),
        ("exploration: does not fade", "self.explore - round * self.explore_decay", "self.explore"),
    ),
    *_of(
        "pfedhn", "pfedhn",
        ("φ: away from Δ", "value + scale * lr * steps", "value - scale * lr * steps"),
        ("embeddings: away from Δ", "v + scale * self.embedding_lr * steps", "v - scale * self.embedding_lr * steps"),
        ("embeddings: frozen", "v + scale * self.embedding_lr * steps", "v + 0 * steps"),
        ("φ: the sum for the mean", "self.lr / len(ids))", "self.lr)"),
        ("overshooting: not noticed", ".norm() <= (y - theta).norm()", ".norm() >= 0"),
        ("newcomer: the mean embedding", "FITTING_STEPS if upload else 0", "0"),
        ("hidden layers: linear", "torch.relu(x) if number else x", "x"),
    ),
    *_of(
        "mocha", "mocha",
        ("regularizer: sign flipped", "models[ids] - slope / pull", "models[ids] + slope / pull"),
        ("regularizer: Ω for its inverse", "vectors[ids] / values @", "vectors[ids] * values @"),
        ("regularizer: others do not count", "rows @ (models", "rows[:, ids].diag()[:, None] * (models"),
        ("λ2: dropped", ' + self.lam2 * (models[ids] - server["origin"])', ""),
        ("Ω: without the root", "torch.ones_like(values)).sqrt()", "torch.ones_like(values))"),
        ("Ω: frozen", 'new["omega"] = relationships(', 'new["other"] = relationships('),
        ("w_i: starts from u_i", 'return {"theta": own["theta"]}, ctx.steps', 'return {"theta": sent["u"]}, ctx.steps'),
    ),
    *_of(
        "fml", "fml",
        ("KL: the other way round", "said.exp() * (said - F.log_softmax(outputs, -1))",
         "F.softmax(outputs, -1) * (F.log_softmax(outputs, -1) - said)"),
        ("KL: dropped", " + (1 - share) * apart", ""),
        ("private model: frozen", 'return {"v": carry["v"]}', 'return {"v": own["v"]}'),
        ("private model: goes up", '{"theta": carry["y"]}', '{"theta": carry["v"]}'),
        ("α and β: exchanged", "for share in (self.alpha, self.beta)", "for share in (self.beta, self.alpha)"),
        ("weights by samples: dropped", "Mean(weights=self.weights, ", "Mean("),
    ),
    *_of(
        "persfl", "persfl",
        ("teacher: the worst round", 'loss, better = found["loss"]', 'loss, better = -found["loss"]'),
        ("teacher: frozen", '"teacher": torch.where(better, candidate, kept["teacher"])', '"teacher": kept["teacher"]'),
        ("teacher: the earlier of two that tie", 'return found["loss"] <= loss', 'return found["loss"] < loss'),
        ("teacher: the later of two that tie", '(found["loss"] < loss)', '(found["loss"] <= loss)'),
        ("teacher: the first where nothing was measured", " | _nothing_measured(found)", ""),
        ("choice: the worst of the grid", "torch.argmax(up", "torch.argmin(up"),
        ("ties: to the larger values", '.double() - handicap', '.double() + handicap'),
        ("student: starts from the last model", '"student": chosen["teacher"]', '"student": sent["theta"]'),
        ("newcomer: the last model always", '("theta", "history")', '("theta",)'),
        ("direction: not asked for", "self.stage1.divergence, self.stage1.direction",
         'self.stage1.divergence, "forward"'),
        ("grid: reported in another order", "scores[stage2.trained.index(", "scores[-1 - stage2.trained.index("),
        ("grid: one student for all T where λ is not 0", "return (lam, t) if lam else",
         "return (lam, t) if lam < 0 else"),
        ("grid: 0 where nothing was measured", "torch.where(_nothing_measured(found), torch.nan, ",
         "torch.where(_nothing_measured(found), 0.0, "),
    ),
    *_of(
        "persfl", "distillation",
        ("distillation: entropy added, not subtracted", "by_entropy - imitation", "by_entropy + imitation"),
        ("distillation: T² dropped", "imitation * temperature**2 * entropy", "imitation * entropy"),
        ("reverse: entropy subtracted, not added", "by_entropy + imitation", "by_entropy - imitation"),
        ("reverse: entropy of the teacher", "said = F.log_softmax(outputs", "said = F.log_softmax(teacher"),
        ("reverse: forward in its place", '("kl", "reverse"): reverse_distillation', '("kl", "reverse"): distillation'),
    ),
    *_of(
        "persfl-gd", "distillation",
        ("imitation: sign flipped", FORWARD, FORWARD.replace("imitated = -", "imitated = ")),
        ("imitation: dropped", FORWARD, FORWARD.replace("imitated = -", "imitated = 0 * ")),
        ("teacher's probabilities: those of the student", "soft = F.softmax(teacher / temperature, -1)\n    imitated",
         "soft = F.softmax(outputs / temperature, -1)\n    imitated"),
        ("reverse: probabilities of the teacher", "soft = F.softmax(outputs", "soft = F.softmax(teacher"),
    ),
    *_of(
        "persfl-gd", "persfl",
        ("student: frozen", 'ctx.descend(carry, "student", slope)', "pass"),
    ),
    *_of(
        "selffl", "selffl",
        ("start point: shifted to the wrong side", 'own["theta"], -torch.where', 'own["theta"], torch.where'),
        ("start point: cap dropped", "0.0).clamp(max=1.0)", "0.0)"),
        ("steps: batch size dropped", "ctx.lr / (ctx.batch_size * sigma2)", "ctx.lr / sigma2"),
        ("S: a client counts itself", "return before + after", "return before + after + values"),
        ("posterior: exact becomes the paper's", "S / (1 + sigma0_2 * S)", "S"),
        ("variance: wrong factor", "(t - 1) / t.square() * apart", "1 / t * apart"),
        ("weights: σ_m² dropped", "weights = 1 / (sigma0_2 + sigma2) if", "weights = 1 / (sigma0_2 + 0 * sigma2) if"),
        ("σ0²: around nothing", '(uploads["theta"] - uploads.average(uploads["theta"])).square()',
         'uploads["theta"].square()'),
        ("smoothing: dropped", 'torch.lerp(server["theta"], estimate, share)', "estimate"),
        ("σ_m² of the server: frozen", 'server["sigma2"].index_copy(0, uploads.ids.to(theta.device), reported)',
         'server["sigma2"]'),
        ("adaptive smoothing: noise for signal", "(1 - noise / signal)", "(noise / signal)"),
        ("warm rounds: equal weights", 'weights="samples",', 'weights="equal",'),
        ("gain: ignores the posterior", '"gain": 1 + sigma2 * evidence', '"gain": 1 + sigma2 * sent["S"]'),
    ),
    *_of(
        "selffl", "selffl_clusters",
        ("clusters: forgotten", 'server["cluster_sigma2"].clone()', 'torch.full_like(server["cluster_sigma2"], -1.0)'),
    ),
    *_of(
        "selffl", "selffl_options",
        ("sums: of full batches", "grad(theta) * grad.count()", "grad(theta)"),
        ("rate: for one step", "/ steps.clamp(min=1)", ""),
        ("rate: batch size dropped", "-batch_size * sigma2 * torch.expm1", "-sigma2 * torch.expm1"),
        ("ℓ: below 0", "-torch.log1p(-rate.clamp", "torch.log1p(rate.clamp"),
        ("ℓ: 1 for a step to the optimum", "torch.where(rate < 1, asked, 0.0)", "torch.where(rate < 1, asked, 1.0)"),
        ("information: of one sample", "samples * squares.double()", "squares.double()"),
        ("damping: dropped", "squares.double() + damping", "squares.double() + 1e-9"),
        ("Fisher information: in warm rounds", 'torch.where(counts, sigma2, new["sigma2"])', "sigma2"),
        ("Fisher information: known as late as a variance", 'return 1 if self.sigma == "fisher" else 2', "return 2"),
        ("prior: around the present model", 'torch.lerp(estimate, server["prior"]',
         'torch.lerp(estimate, server["theta"]'),
        ("prior: against weights without a scale", "torch.where(known, self.prior / (mass + self.prior), 0.0)",
         "self.prior / (mass + self.prior)"),
    ),
    *_of(
        "selffl-aug", "selffl_aug",
        ("server: gets the early-stopped model", 'return new, {"theta": theta, "personal"',
         'return new, {"theta": personal, "personal"'),
        ("variance: of early-stopped models", "_remembered(own, carry,",
         '_remembered(own, {**carry, "theta": personal},'),
        ("convergence: never", '(carry["moved"] > self.tolerance)', '(carry["moved"] > -1)'),
        ("personal model: the local optimum", 'return own["personal"]', 'return own["theta"]'),
        ("early steps: stopped by convergence", "going = early | (", "going = ("),
        ("warm rounds: with extra steps", 'torch.where(sent["warm"] > 0, 0, self.extra_steps)',
         'torch.where(sent["warm"] > 0, self.extra_steps, self.extra_steps)'),
    ),
]  # fmt: skip
RULES = [
    *_of(
        "robust rules", "robust_rules",
        ("clip: the longest for the median", "norms.double().median()", "norms.double().max()"),
        ("clip: short updates are stretched", "torch.where(norms > most, most / norms.double(), 1.0)",
         "most / norms.double()"),
        ("median: without weights", "lower = (upto < 0.5 - TIE)", "lower = (upto < 0.7 - TIE)"),
        ("median: the lower of two", "upper = (upto <= 0.5 + TIE)", "upper = (upto < 0.5 - TIE)"),
        ("trimmed mean: one end only", "upto.clamp(max=1 - trim)", "upto"),
        ("trimmed mean: the other end only", "(upto - each).clamp(min=trim)", "(upto - each)"),
        ("Krum: too many neighbours", "count - attackers - 2", "count - 1"),
        ("Krum: oneself as a neighbour", "apart.fill_diagonal_(torch.inf)", "apart.fill_diagonal_(0.0)"),
        ("Krum: the furthest", "nearest.sum(1).argsort(stable=True)", "(-nearest.sum(1)).argsort(stable=True)"),
        ("geometric median: without weights", "pull = torch.where(there, weights / distance, 0.0)",
         "pull = torch.where(there, 1 / distance, 0.0)"),
        ("geometric median: squared distances", "products @ share + place).clamp(min=0).sqrt()",
         "products @ share + place).clamp(min=0)"),
        ("geometric median: no row is the best", "force <= own * (1 + 1e-9)", "force < -own"),
        ("rows are not centred", "block.double() - block.double().median(0).values", "block.double()"),
        folder="training",
    ),
    *_of(
        "robust", "robust",
        ("clip: towards 0", "before[long].double() + shrunk[long, None]", "shrunk[long, None]"),
        ("Krum: one too few", 'many = count - f if self.rule == "multi-krum" else 1',
         'many = count - f - 1 if self.rule == "multi-krum" else 1'),
        ("weights: not bounded", "replace(uploads, factor=self.max_weight_factor)", "replace(uploads)"),
        ("trimmed mean: always a fifth", "trim=self.attackers", "trim=0.2"),
        ("rules do nothing", "replace(uploads, rule=self.stand_in())", "uploads"),
        folder="training",
    ),
]  # fmt: skip
"""Of robust aggregation, which is no algorithm."""


@dataclass(frozen=True)
class Outcome:
    """How a test file did on a copy: the first test that failed (empty if none), and what was printed."""

    failed: str
    output: str


def apply(text: str, mutation: Mutation) -> str:
    """The file's text with the mutation in it."""
    found = text.count(mutation.original)
    if found != 1:
        what = f"{mutation.algorithm}, {mutation.breaks!r}"
        raise ValueError(f"{what}: {mutation.original!r} occurs {found} times in {mutation.file}.py, not once")
    return text.replace(mutation.original, mutation.mutated)


def run_tests(test: str, source: Path, mutation: Mutation | None = None) -> Outcome:
    """Run a test file on a copy of the package, mutated or as it is."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        shutil.copytree(source / "personafl", Path(folder) / "personafl", ignore=shutil.ignore_patterns("__pycache__"))
        if mutation is not None:
            file = Path(folder) / "personafl" / mutation.path
            file.write_text(apply(file.read_text("utf-8"), mutation), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line"]
        command = [sys.executable, "-c", PROGRAM, folder, *options, *test.split()]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    output = done.stdout + done.stderr
    if done.returncode not in (0, 1) or "personafl comes from" in output or "error" in output.splitlines()[-1]:
        raise RuntimeError(f"{test} did not run ({mutation}):\n{output[-2000:]}")
    first = re.search(r"^FAILED [^:]+::(\w+)", output, re.MULTILINE)
    return Outcome(first.group(1) if first else "", output)


def check(mutations: Iterable[Mutation], source: Path = SOURCE) -> tuple[dict[Mutation, str], dict[str, Outcome]]:
    """For each mutation the test that noticed it ("" if none did), and the test files that fail without any."""
    mutations = list(mutations)
    for mutation in mutations:
        apply((source / "personafl" / mutation.path).read_text("utf-8"), mutation)
    tests = sorted({mutation.test for mutation in mutations})
    with ThreadPoolExecutor(WORKERS) as pool:
        whole = dict(zip(tests, pool.map(lambda test: run_tests(test, source), tests), strict=True))
        broken = {test: outcome for test, outcome in whole.items() if outcome.failed}
        # A test file that fails anyway proves nothing.
        useful = [mutation for mutation in mutations if mutation.test not in broken]
        outcomes = pool.map(lambda mutation: run_tests(mutation.test, source, mutation), useful)
        return {m: outcome.failed for m, outcome in zip(useful, outcomes, strict=True)}, broken


def table(caught: dict[Mutation, str], markdown: bool = False) -> str:
    rows = [("algorithm", "mutation", "caught by")]
    rows += [(m.algorithm, m.breaks, test or "NOBODY") for m, test in caught.items()]
    if markdown:
        rows = [rows[0], ("---",) * 3, *((a, b, f"`{c}`") for a, b, c in rows[1:])]  # type: ignore[list-item]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ALGORITHM", help="these algorithms")
    parser.add_argument("--markdown", action="store_true", help="print the table for the docs")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder that holds the package")
    options = parser.parse_args()
    chosen = [m for m in (*MUTATIONS, *RULES) if not options.only or m.algorithm in options.only]
    caught, broken = check(chosen, options.source.resolve())
    print(table(caught, options.markdown))
    for test, outcome in broken.items():
        print(f"{test} fails without any mutation: {outcome.failed}", file=sys.stderr)
    missed = [m for m, test in caught.items() if not test]
    print(f"{len(caught) - len(missed)} of {len(chosen)} mutations caught", file=sys.stderr)
    return 1 if missed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
