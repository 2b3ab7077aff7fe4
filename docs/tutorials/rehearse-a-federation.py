# %% [markdown]
# # Rehearse a real federation
#
# In a real federation the data stays at other people's sites. personafl runs the same algorithms there, on Flower.
# Before you ask hospitals to install anything, rehearse: first in Flower's simulator, then with real servers, keys and
# TLS on this machine.
#
# It needs `pip install "personafl[flower]" "personafl[ray]"`.
#
# ## The same run, as messages
#
# A run on this machine's engine, and the same in Flower's simulator, where every client is a node that gets messages
# and answers.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import personafl as pf

fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=4, alpha=0.5), seed=0)
torch.manual_seed(0)
start = nn.Linear(64, 10)
settings = {"rounds": 3, "local": pf.Local(lr=0.1, steps=5), "progress": False}
here = pf.train(fed, start, pf.Ditto(), engine="stacked", **settings)
there = pf.train(fed, start, pf.Ditto(), engine="flower-sim", **settings)
for name, run in {"this process": here, "Flower": there}.items():
    print(f"{name:13} {run.score['personal_accuracy']:.4f} {run.score['personal_loss']:.6f}")
assert abs(here.score["personal_loss"] - there.score["personal_loss"]) < 1e-5

# %% [markdown]
# The same numbers, to rounding: what you found in a simulation is what sites will compute.
#
# ## What operator and sites get
#
# `personafl deploy init` writes a folder: a certificate authority, keys, scripts, and a page of instructions for the
# operator and for each site. Here it is called from Python, and makes the keys of all sites, which is for rehearsals:
# in a real federation each site makes its own.

# %%
from personafl.backends.deploy import init_federation

init_federation(Path("clinics"), ["north", "south"])
for folder in ("operator", "sites/north"):
    print(folder, *sorted(path.name for path in Path("clinics", folder).iterdir()), sep="\n    ")

# %% [markdown]
# What is trained is an ordinary config, without data: nobody but a site knows its data.

# %%
print(Path("clinics/federation.toml").read_text("utf-8"))

# %% [markdown]
# ## A site decides
#
# Each site has its `site.toml`: which data it brings, and what it insists on. `policy.toml` beside it says what may run
# there at all.

# %%
print(Path("clinics/sites/north/site.toml").read_text("utf-8"))

# %% [markdown]
# ## The rehearsal itself
#
# These commands start a real SuperLink, nginx and two sites on loopback, and train. It takes a few minutes:
#
# ```console
# $ personafl deploy up clinics
# $ personafl watch clinics/rehearsal-1/run
# ```
#
# On the day, the north makes its key and asks (`personafl site request`), the operator takes it in (`deploy accept`)
# and sends back an archive, and the staff of the north unpack it and run
#
# ```console
# $ personafl site check site.toml
# $ ./start.sh
# ```
#
# ## Look before joining
#
# `site check` says what keeps a site from joining. We bring data to the north, and ask.

# %%
from personafl.backends.deploy.check import check_site

x, y = fed.client("client-0")["train"]
np.savez("clinics/sites/north/data.npz", x=x, y=y)
for finding in check_site(Path("clinics/sites/north/site.toml")):
    print(f"{finding.state:8} {finding.what:21} {finding.about}")

# %% [markdown]
# ## What each client gained, on messages

# %%
table = there.clients().to_pydict()
plt.figure(figsize=(6, 2.6))
place = np.arange(len(table["client"]))
plt.bar(place - 0.2, table["global_accuracy"], width=0.38, label="the common model")
plt.bar(place + 0.2, table["personal_accuracy"], width=0.38, label="its own")
plt.xticks(place, table["client"])
plt.ylabel("accuracy")
plt.legend(loc="lower right")

# %% [markdown]
# Everything else is on [a real federation](../deploy.md); what the operator can and cannot see, on [who sees
# what](../who-sees-what.md).
