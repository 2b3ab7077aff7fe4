from datasets import load_dataset
from torch import nn

import personafl as pf

dataset = load_dataset("csv", data_files="hospitals.csv", split="train")  # or one of the Hub
fed = pf.Federation.from_huggingface(dataset, client="hospital", label="outcome", normalize="standard")
run = pf.train(fed, nn.Linear(30, 2), pf.Ditto(), rounds=10, progress=False)
print(run.score)
