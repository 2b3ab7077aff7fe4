# %% [markdown]
# # A pretrained model
#
# You have a network that somebody trained on much data, and clients with little. The network stays frozen, and each
# client gets a small head of its own on its features.
#
# ## A network with weights
#
# Usually you would load one, `pf.pretrained.load("weights/all-MiniLM-L6-v2")`. So that this notebook needs no download
# we make small weights on the spot: a network learns to tell the digits 0 to 4 apart, of people who are not clients.
# That takes a few seconds.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import personafl as pf

digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.LayerNorm(32))
whole = nn.Sequential(body, nn.Linear(32, 5))
optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
theirs = y < 5
for _ in range(150):
    optimizer.zero_grad()
    nn.functional.cross_entropy(whole(x[theirs]), y[theirs]).backward()
    optimizer.step()
print(f"loss on what it was trained on: {nn.functional.cross_entropy(whole(x[theirs]), y[theirs]):.3f}")

# %% [markdown]
# ## Clients who want something else
#
# Twenty people have sixty of the digits 5 to 9 each, which the network never saw. And they do not agree on what to call
# them: half of the people count from the other end. One head for all cannot be right for both halves.

# %%
draws = np.random.default_rng(0)
others = np.flatnonzero(~theirs.numpy())
people = {}
for k in range(20):
    mine = draws.choice(others, 60, replace=False)
    label = y[mine] - 5
    people[f"person-{k}"] = (x[mine], label if k % 2 else 4 - label)
fed = pf.Federation.from_clients(people)

# %% [markdown]
# ## Features once
#
# `through` passes each sample through the frozen network once, not in each step of each round.

# %%
features = fed.through(body, progress=False, cache=False)
print(fed.x.shape, "->", features.x.shape)

# %% [markdown]
# ## Heads
#
# `fedavg` trains one head for all, `separate` a head for each alone, `ifca` two heads, of which each person takes the
# one that fits. `fedavg`'s personalized model is what a person's own steps make of the one head.

# %%
local, head = pf.Local(lr=0.1, steps=10), nn.Linear(32, 5)
runs = {
    name: pf.train(features, head, algorithm, rounds=25, local=local, progress=False)
    for name, algorithm in {"fedavg": "fedavg", "separate": "separate", "ifca": pf.IFCA(clusters=2)}.items()
}
for name, run in runs.items():
    print(f"{name:9} {run.score['personal_accuracy']:.1%}")
print(f"one head for all: {runs['fedavg'].score['global_accuracy']:.1%}")

# %% [markdown]
# Nobody told `ifca` who counts from the other end. Which of the two heads each person takes, in order:

# %%
print([int(head) for head in runs["ifca"].clients().to_pydict()["cluster"]])

# %% [markdown]
# ## A whole model to use
#
# What is handed out is network and head in one: it takes raw samples.

# %%
net = runs["ifca"].personal("person-3")
print(net)
print("says", net(people["person-3"][0][:8]).argmax(1).tolist())
print("is  ", people["person-3"][1][:8].tolist())

# %% [markdown]
# ## Each person
#
# One head for all (`fedavg`, the global model), a head alone, and the head of one's own half.

# %%
shown = {
    "one head for all": runs["fedavg"].clients().to_pydict()["global_accuracy"],
    "a head alone": runs["separate"].clients().to_pydict()["personal_accuracy"],
    "two heads (ifca)": runs["ifca"].clients().to_pydict()["personal_accuracy"],
}
plt.figure(figsize=(6, 3))
plt.boxplot(list(shown.values()), orientation="horizontal")
plt.yticks(range(1, 4), list(shown))
plt.xlabel("accuracy on a person's own test digits")

# %% [markdown]
# Texts, images, ONNX files and LoRA adapters go the same way: [pretrained models](../pretrained.md).
