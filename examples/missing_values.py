from torch import nn

import personafl as pf

patients = {
    "hospital": ["a"] * 50 + ["b"] * 50,
    "age": [61, None, 43, 70, 38] * 20,
    "pain": ["typical", "none", None, "none", "atypical"] * 20,
    "ill": [1, 0, 0, 1, 0] * 20,
}
fed = pf.Federation.from_table(
    patients, client="hospital", label="ill", categorical=["pain"], missing="fill", normalize="standard"
)
print(fed)  # a note says what was filled in

run = pf.train(fed, nn.Linear(fed.x.shape[1], 2), pf.Ditto(), rounds=10, progress=False)
new = [[float("nan"), 0.0, 1.0, 0.0]]  # age, then a feature for each kind of pain: atypical, none, typical
print(run.personal("a")(run.features(new)).argmax(1))
