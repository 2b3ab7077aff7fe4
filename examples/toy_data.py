"""Write the toy data of docs/your-data.md: 569 real patients (breast cancer, Wisconsin), dealt to eight hospitals."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet
from sklearn.datasets import load_breast_cancer

patients = load_breast_cancer()
columns = {name.replace(" ", "_"): patients.data[:, k].round(4) for k, name in enumerate(patients.feature_names)}
outcome = patients.target_names[patients.target]  # "malignant" or "benign"

# Hospitals are not alike: the first see small tumours, the last see large ones.
size = patients.data[:, 0] + np.random.default_rng(0).normal(0, 3, 569)
hospital = np.array([f"hospital-{k + 1}" for k in np.argsort(np.argsort(size)) * 8 // 569])

table = pa.table({"hospital": hospital, **columns, "outcome": outcome})
csv.write_csv(table, "hospitals.csv")
parquet.write_table(table, "hospitals.parquet")

Path("hospitals").mkdir(exist_ok=True)
for name in np.unique(hospital):
    here = hospital == name
    np.savez(f"hospitals/{name}.npz", x=patients.data[here].astype(np.float32), y=outcome[here] == "malignant")
