# %% [markdown]
# # First federation
#
# Ten minutes: forty clients with a few handwritten digits each, a model for everybody, and who gains by it.
#
# ## A federation
#
# A federation is the data of all clients. We deal the 1,797 digits of scikit-learn to forty clients, unevenly: a
# Dirichlet distribution with a small `alpha` gives each client many digits of some kinds and few of others.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import personafl as pf

fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=40, alpha=0.3), seed=0)
fed

# %% [markdown]
# Who has what? A row for each of the first twelve clients, a column for each digit.

# %%
counts = np.array([np.bincount(fed.client(name)["train"][1], minlength=10) for name in fed.ids[:12]])
plt.figure(figsize=(6, 3.5))
plt.imshow(counts, cmap="Blues", aspect="auto")
plt.colorbar(label="training samples")
plt.xticks(range(10))
plt.yticks(range(12), fed.ids[:12])
plt.xlabel("digit")

# %% [markdown]
# ## Alone, and together
#
# `separate` is training alone: each client on its own samples. Ditto trains a model of its own for each client too,
# and pulls it towards what all have in common. `nn.Linear(64, 10)` is the model here; any torch module goes. Training
# begins at the weights that it has, so both runs get the same one.

# %%
torch.manual_seed(0)
start = nn.Linear(64, 10)
settings = {"local": pf.Local(lr=0.1, steps=10), "rounds": 20, "progress": False}
alone = pf.train(fed, start, "separate", **settings)
together = pf.train(fed, start, pf.Ditto(), **settings, out="runs/together")
together

# %% [markdown]
# `score` is over all test samples of all clients. `global_accuracy` is Ditto's one model for all, `personal_accuracy`
# each client's own.

# %%
for name, run in {"alone": alone, "together": together}.items():
    print(name, {key: f"{run.score[key]:.1%}" for key in ("personal_accuracy", "global_accuracy") if key in run.score})

# %% [markdown]
# ## A model to use
#
# Each personal model is an `nn.Module`.

# %%
x, y = fed.client("client-7")["test"]
net = together.personal("client-7")
print("says", net(x).argmax(1).tolist())
print("is  ", y.tolist())

# %% [markdown]
# Somebody who was not there gets one as well, from a few samples of their own:

# %%
newcomer = together.personalize(*fed.client("client-3")["train"])
newcomer

# %% [markdown]
# ## Who gains?
#
# A bar for each client: above zero it is better off together. There may be some that lose: an average would not show
# them. `run.plot` has more pictures, and `run.clients(frame="pandas")` the numbers as a frame.

# %%
together.plot.gains(alone)

# %% [markdown]
# A dot for each client: above the line it is better off together. Small clients gain most.

# %%
before, after = (run.clients().to_pydict() for run in (alone, together))
sizes = np.array(after["n_train"])
plt.figure(figsize=(5, 5))
plt.scatter(before["personal_accuracy"], after["personal_accuracy"], s=8 + sizes, alpha=0.6)
plt.plot([0, 1], [0, 1], color="grey", linewidth=1)
plt.xlabel("accuracy alone")
plt.ylabel("accuracy together (Ditto)")
plt.title("40 clients; larger dots have more training samples")

# %% [markdown]
# One seed, one method, settings that nobody searched: this is a first look, not a result. [Compare
# honestly](compare-honestly.md) is how to find out what is really better, [choosing a method](../choosing.md) what else
# to try.
