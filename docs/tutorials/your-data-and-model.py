# %% [markdown]
# # Your data and model
#
# A table of patients with a column that says in which hospital each was, and a network of your own.
#
# ## A table
#
# We write one first, so that this runs everywhere: 569 real patients (breast cancer, Wisconsin), dealt to eight
# hospitals that are not alike. The first see small tumours, the last see large ones. Take your own CSV or parquet file
# instead.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv
from sklearn.datasets import load_breast_cancer
from torch import nn

import personafl as pf

patients = load_breast_cancer()
size = patients.data[:, 0] + np.random.default_rng(0).normal(0, 3, 569)
hospital = [f"hospital-{k + 1}" for k in np.argsort(np.argsort(size)) * 8 // 569]
columns = {name.replace(" ", "_"): patients.data[:, k] for k, name in enumerate(patients.feature_names)}
table = pa.table({"hospital": hospital, **columns, "outcome": patients.target_names[patients.target]})
csv.write_csv(table, "patients.csv")
table.select(["hospital", "mean_radius", "mean_texture", "outcome"]).slice(0, 4).to_pylist()

# %% [markdown]
# ## A federation of it
#
# `client` and `label` name columns. All other columns of numbers are features. `normalize="standard"` subtracts means
# and divides by standard deviations of the training samples. Text labels become classes, and keep their names.

# %%
fed = pf.Federation.from_table("patients.csv", client="hospital", label="outcome", normalize="standard")
print(fed)
print(fed.class_names)

# %% [markdown]
# ## A network of your own
#
# Any torch module. `pf.explain` says what personafl found in it, before anything is trained: which layers are computed
# for all clients at once, what is sent, what clients keep.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(0)
start = Net()
print(pf.explain(start, fed, "fedper"))

# %% [markdown]
# FedPer shares the body; each hospital has a head of its own.

# %%
local = pf.Local(lr=0.1, steps=10)
run = pf.train(fed, start, "fedper", rounds=20, local=local, out="runs/hospitals", resume=True, progress=False)
run

# %% [markdown]
# ## Use it
#
# A hospital's own model, on patients as they were measured: `run.features` standardizes them as the training data was.

# %%
net = run.personal("hospital-3")
x = np.stack([patients.data[k] for k in range(569) if hospital[k] == "hospital-3"][:6])
[fed.class_names[k] for k in net(run.features(x)).argmax(1)]

# %% [markdown]
# Later, in another program: the folder has everything but the code of the model.

# %%
again = pf.load("runs/hospitals", module=Net())
again.personal("hospital-3")(run.features(x)).argmax(1).tolist()

# %% [markdown]
# ## Each hospital
#
# Accuracy on the hospital's own test patients, with FedPer and with training alone.

# %%
alone = pf.train(fed, start, "separate", rounds=20, local=local, progress=False)
place = np.arange(len(fed.ids))
plt.figure(figsize=(7, 3))
for shift, (name, found) in zip((-0.2, 0.2), {"alone": alone, "FedPer": run}.items(), strict=True):
    plt.bar(place + shift, found.clients().to_pydict()["personal_accuracy"], width=0.38, label=name)
plt.xticks(place, [name.removeprefix("hospital-") for name in fed.ids])
plt.xlabel("hospital")
plt.ylabel("accuracy")
plt.ylim(0.5, 1.02)
plt.legend(loc="lower right")

# %% [markdown]
# With 14 test patients a hospital, one patient is 7 points: bars that differ by one patient say nothing. [Compare
# honestly](compare-honestly.md) tests over all hospitals at once. More ways to bring data: [your
# data](../your-data.md).
