#!/bin/sh
# Install the libraries that `personafl bench --peers` compares with, into benchmarks/peers/.venv, where it finds them.
#
#     benchmarks/peers/install.sh [PYTHON]
#
# torch first and pinned to the version that personafl is tested with, so that nothing exchanges a build for CPUs for one
# with CUDA. fedlab comes without its dependencies for the same reason: of torchvision it needs the name only.
set -eu
cd "$(dirname "$0")"
python=${1:-python3}
torch=$(sed -n '/^torch==/p' ../../requirements-torch.lock)
rm -rf .venv
"$python" -m venv .venv
pip="./.venv/bin/python -m pip install --no-input --disable-pip-version-check -q"
$pip "$torch"
printf '%s\n' "$torch" > .venv/constraints.txt
$pip -c .venv/constraints.txt "pfl>=0.6,<1" "flwr[simulation]>=1.41,<1.42" "jax>=0.10,<0.11" "fedjax>=0.0.17,<0.1" \
    munch pandas nvidia-ml-py pillow scikit-learn tqdm
$pip --no-deps "fedlab>=1.3,<2"
./.venv/bin/python - <<'END'
from importlib.metadata import version

import torch

if torch.version.cuda is not None:
    print("torch is a build with CUDA: this is a comparison on CPUs")
print(", ".join(f"{name} {version(name)}" for name in ("torch", "pfl", "flwr", "ray", "jax", "fedjax", "fedlab")))
END
