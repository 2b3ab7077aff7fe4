import numpy as np
from torch import nn

import personafl as pf


class Net(nn.Module):
    """A model of your own: any torch module."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.body(x))


fed = pf.Federation.from_table("hospitals.parquet", client="hospital", label="outcome", normalize="standard")
run = pf.train(fed, Net(), pf.Ditto(), rounds=10, out="runs/own-model", progress=False)

# A table with a row for each client: samples, accuracy of its own and of the global model, …
print(run.clients().select(["client", "n_train", "personal_accuracy", "global_accuracy"]).to_pylist()[0])

# A client's model, ready to use. It wants features as it was trained on them: standardized.
net = run.personal("hospital-3")
patients = np.load("hospitals/hospital-3.npz")
x = run.features(patients["x"])
print([fed.class_names[k] for k in net(x[:5]).argmax(1)])

# A model for somebody who was not there for the training, from their own data, as it is: 1 is malignant.
newcomer = run.personalize(patients["x"], patients["y"])

# Later, in another program: the folder has everything but the code of the model.
again = pf.load("runs/own-model", module=Net()).personal("hospital-3")
