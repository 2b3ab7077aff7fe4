import numpy as np
import torch
from torch import nn

import personafl as pf


class Notes(nn.Module):
    """Reads a text of any length and a few numbers beside it. The inputs come as keywords, by their names."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8 + 2, 2)

    def forward(self, ids, numbers, mask):
        real = mask.unsqueeze(-1).float()  # 1 for a word, 0 for padding
        text = (self.words(ids) * real).sum(1) / real.sum(1)
        return self.head(torch.cat([text, numbers], 1))


def patients(hospital: int, count: int = 60):
    """Texts of 3 to 9 words, each with two numbers: words from 10 on are bad news, and so are high numbers."""
    rng = np.random.default_rng(hospital)
    ids = [rng.integers(0, 20, rng.integers(3, 10)) for _ in range(count)]
    numbers = rng.normal(size=(count, 2)).astype(np.float32)
    y = np.array([(row >= 10).mean() - 0.5 for row in ids]) + numbers.sum(1) > 0
    return {"ids": ids, "numbers": numbers}, y.astype(int)


fed = pf.Federation.from_clients({f"hospital-{k}": patients(k) for k in range(8)})
print(fed)  # ids and mask of shape (9,): padded to the longest text

run = pf.train(fed, Notes(), pf.Ditto(), local=pf.Local(lr=0.5, steps=20), rounds=20, progress=False)
print(run.score)

x, y = patients(99)  # somebody new: lists as they are, padded for the model
newcomer = run.personalize(x, y)
print(newcomer(**run.features(x)).argmax(1))
