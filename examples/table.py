from torch import nn

import personafl as pf

fed = pf.Federation.from_table("hospitals.csv", client="hospital", label="outcome", normalize="standard")
print(fed.class_names)  # ('benign', 'malignant'): class 0 and class 1

run = pf.train(fed, nn.Linear(30, 2), pf.Ditto(), rounds=10, progress=False)
print(run.score)
