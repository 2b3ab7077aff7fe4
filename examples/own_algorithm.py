"""An algorithm of your own, complete: compare it with others, on any engine, in one file.

Mean-regularized multi-task learning (Evgeniou, Pontil: Regularized multi-task learning, KDD 2004; as federated
learning: Hanzely, Richtárik: Federated learning of a mixture of global and local models, 2020). Every client has a
model v_i of its own, and all models are pulled towards their mean:

    minimize over v_1 … v_M   Σ f_i(v_i) + λ/2 Σ ‖v_i − mean v‖²

    client   v_i ← v_i − η (g_i(v_i) + λ (v_i − mean v)),   from its own v_i
    server   mean v ← (1/M) Σ v_i

    python examples/own_algorithm.py
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

import personafl as pf


@dataclass(frozen=True)
class MeanRegularized(pf.Algorithm):
    """Models of their own, pulled towards their mean."""

    lam: float = 1.0  # 0 is training alone; the larger, the more alike the models are

    about = pf.About(
        name="mean-regularized",
        paper="Hanzely, Richtárik 2020",
        personalized="v_i",
        keeps="v_i",
        newcomer="trains v once from the mean, pulled towards it",
    )
    # The server needs the mean of what goes up, and nobody's own answer: averaging on the way, clipping, noise follow.
    uplink: ClassVar[pf.Uplink] = {"theta": pf.Mean(weights="equal", relative_to="theta")}

    def new_client(self, theta0: Tensor, sent: pf.State) -> pf.State:
        return {"v": sent["theta"]}  # when a client is first seen, it starts from the mean of that time

    def begin(self, own: pf.State, sent: pf.State, ctx: pf.Context) -> tuple[pf.State, Tensor]:
        return {"v": own["v"]}, ctx.steps

    def step(self, carry: pf.State, sent: pf.State, grad: pf.Gradient, ctx: pf.Context) -> pf.State:
        ctx.descend(carry, "v", grad, proximal=(self.lam, sent["theta"]))
        return carry

    def finish(self, own: pf.State, carry: pf.State, sent: pf.State, ctx: pf.Context) -> tuple[pf.State, pf.State]:
        return {"v": carry["v"]}, {"theta": carry["v"]}

    def personal(self, own: pf.State, sent: pf.State) -> Tensor:
        return own["v"]


def main() -> None:
    """Compare it with training alone, FedAvg and Ditto on handwritten digits."""
    digits = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=20, alpha=0.3), seed=0)
    methods = [MeanRegularized(lam=0.3), pf.Ditto(lam=0.3)]
    pf.compare(digits, nn.Linear(64, 10), methods, seeds=2, rounds=20, local=pf.Local(lr=0.1, steps=10)).show()


if __name__ == "__main__":
    main()
