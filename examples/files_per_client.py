from torch import nn

import personafl as pf

fed = pf.Federation.from_folder("hospitals").standardized()
print(fed.ids, fed.x.shape)

run = pf.train(fed, nn.Linear(30, 2), pf.Ditto(), rounds=10, progress=False)
print(run.score)
