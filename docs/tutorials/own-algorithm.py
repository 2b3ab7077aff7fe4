# %% [markdown]
# # Your own algorithm
#
# An algorithm is a frozen dataclass of its settings, with methods that are written for ONE client, as the paper has
# them. personafl runs it for all clients at once, on every engine, on a cluster and at real sites.
#
# We write mean-regularized learning (Evgeniou, Pontil 2004): each client has its own model v, pulled towards the mean
# of all.
#
#     minimize   Σ f_i(v_i) + λ/2 Σ ‖v_i − mean v‖²
#
#     client     v ← v − η (g(v) + λ (v − mean v))
#     server     mean v ← (1/M) Σ v_i

# %%
from dataclasses import dataclass
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import personafl as pf


@dataclass(frozen=True)
class MeanRegularized(pf.Algorithm):
    """Models of their own, pulled towards their mean."""

    lam: float = 1.0

    about = pf.About(name="mean-regularized", paper="Evgeniou, Pontil 2004", personalized="v_i", keeps="v_i")
    uplink: ClassVar[pf.Uplink] = {"theta": pf.Mean(weights="equal", relative_to="theta")}

    def new_client(self, theta0, sent):  # when a client is first seen
        return {"v": sent["theta"]}

    def begin(self, own, sent, ctx):  # what the steps work on, and how many there are
        return {"v": own["v"]}, ctx.steps

    def step(self, carry, sent, grad, ctx):  # one local step
        ctx.descend(carry, "v", grad, proximal=(self.lam, sent["theta"]))
        return carry

    def finish(self, own, carry, sent, ctx):  # what the client keeps, and what goes up
        return {"v": carry["v"]}, {"theta": carry["v"]}

    def personal(self, own, sent):  # the personalized model
        return own["v"]


# %% [markdown]
# The server's part follows from `uplink`: a mean takes the place of `theta`. Clipping, noise and averaging on the way
# follow from it too.
#
# ## Is it right?
#
# A curve that looks plausible proves nothing. An answer that is known otherwise does. Take clients whose loss is ½‖v −
# c_i‖²: one sample c_i each (and the same once more for testing), a model that is nothing but a vector, and the
# squared distance. Setting the gradient to zero gives
#
#     v_i = (c_i + λ mean c) / (1 + λ)


# %%
class Point(nn.Module):
    """A model that puts out its own parameters, whatever it is asked."""

    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.v.expand(len(x), 2)


c = np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]], dtype=np.float32)
points = pf.Federation.from_clients(
    {f"client-{i}": (np.zeros((2, 1), np.float32), c[[i, i]]) for i in range(3)}, splits=(0.5, 0, 0.5)
)


def halved(outputs, y):
    return ((outputs - y) ** 2).sum(1) / 2


lam = 0.5
run = pf.train(
    points,
    Point(),
    MeanRegularized(lam),
    loss=halved,
    rounds=60,
    local=pf.Local(lr=0.2, batch_size=1, steps=5),
    progress=False,
)
found = np.stack([run.personal(name).v.detach().numpy() for name in points.ids])
known = (c + lam * c.mean(0)) / (1 + lam)
print(np.abs(found - known).max())
assert np.abs(found - known).max() < 1e-4

# %% [markdown]
# As a picture: the data of three clients, their models for several λ, and how these move towards the mean.

# %%
plt.figure(figsize=(5, 4))
plt.plot(*c.T, "ks", label="c: what each client wants")
for lam in (0.1, 0.5, 2.0, 10.0):
    plt.plot(*((c + lam * c.mean(0)) / (1 + lam)).T, "o", label=f"λ = {lam:g}")
plt.plot(*c.mean(0), "k+", markersize=12, label="the mean")
plt.legend()

# %% [markdown]
# ## Beside others
#
# On real data, with nothing changed:

# %%
digits = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=20, alpha=0.3), seed=0)
compared = pf.compare(
    digits,
    nn.Linear(64, 10),
    [MeanRegularized(lam=0.3), pf.Ditto(lam=0.3)],
    seeds=2,
    rounds=12,
    local=pf.Local(lr=0.1, steps=10),
    progress=False,
)
for row in compared.table():
    print(f"{row['label']:32} {row['accuracy']:.1%} ± {row['accuracy_standard_error']:.1%}")
print(compared.answer)

# %% [markdown]
# The rules for these methods, and what else there is (server state, validation data, features), are on [how to add an
# algorithm](../own-algorithm.md).
