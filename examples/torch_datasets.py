import torch
from torch import nn
from torch.utils.data import Dataset

import personafl as pf


class Patients(Dataset):
    """Whatever you have, as long as it has a length and its items are pairs (x, y)."""

    def __init__(self, hospital: int):
        self.size, self.shift = 40 + hospital, hospital / 4

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        x = torch.randn(10, generator=torch.Generator().manual_seed(number))
        return x, int(x.sum() > self.shift)


fed = pf.Federation.from_datasets({f"hospital-{k}": Patients(k) for k in range(8)})
run = pf.train(fed, nn.Linear(10, 2), pf.Ditto(), rounds=10, progress=False)
print(run.score)
