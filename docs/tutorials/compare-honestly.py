# %% [markdown]
# # Compare honestly
#
# "My method has 92%, theirs 91%." Is that the method, the learning rate that was searched for it alone, the seed, or
# luck with the test samples? This notebook compares methods so that the answer can be believed.
#
# ## Four rules
#
# 1. Training alone and FedAvg are always there. `pf.compare` adds them where you do not name them.
# 2. Every method gets the same number of tries, on **validation** data. Test data is looked at once, at the end.
# 3. Several seeds; and the test of a difference is over **clients**, because they are what a method must be good for.
# 4. As many comparisons as were made are accounted for (Holm).

# %%
from torch import nn

import personafl as pf

fed = pf.data.build(pf.data.Digits(), pf.partition.Dirichlet(clients=30, alpha=0.3), seed=0)
found = pf.compare(
    fed,
    nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    ["ditto", "fedper", "fedavg-ft"],
    seeds=2,
    search={"local.lr": [0.03, 0.1]},
    local=pf.Local(steps=10),
    rounds=12,
    progress=False,
)

# %% [markdown]
# ## What was chosen
#
# By validation data, for each method on its own:

# %%
for search in found.searches:
    print(search.sentence())

# %% [markdown]
# ## The answer

# %%
print(found.answer)

# %% [markdown]
# "Not shown to be worse" is not "equal": there may be too few clients to tell. The differences and their p values:

# %%
for row in found.significance():
    print(f"{row['method']:9} {row['model']:8} p = {row['p_holm']:.3f}: {row['says']}")

# %% [markdown]
# ## The table
#
# A comparison shows itself; `found.table(frame="pandas")` gives all of its columns.

# %%
found

# %%
found.plot.scores()

# %% [markdown]
# Which clients gain over training alone? Half of them are in the box, the triangle is their mean.

# %%
found.plot.gains()

# %% [markdown]
# `found.report("page.html")` writes all of it, with each client, as one page for a browser; `found.write()` the table
# as CSV and LaTeX. Ditto computes two gradients in a step where FedAvg computes one: `equal_work=True` evens that out.
# [Comparing](../compare.md) and [what is tested](../significance.md) have the details.
