#!/bin/sh
# Tests with the lowest versions of packages that pyproject.toml allows, in .venv-lowest: test_lowest.sh PYTHON TORCH
# torch stays at the version of the lock: of older ones, the package index has builds for graphics cards alone.
set -eu
python=$1 torch=$2 venv=.venv-lowest

test -x $venv/bin/pip || "$python" -m venv $venv
$venv/bin/pip install -qq packaging
$venv/bin/python scripts/lowest.py "$torch" > $venv/lowest.txt
echo "test-lowest: $(grep -c == $venv/lowest.txt) packages at their lowest versions, with $torch"
$venv/bin/pip install -qq "$torch"
$venv/bin/pip install -qq --no-compile -c $venv/lowest.txt \
    -e '.[mlflow,onnx,privacy,tensorboard]' -e papers -e benchmarks \
    hypothesis pytest pytest-timeout pytest-xdist
$venv/bin/pip check
exec $venv/bin/python -m pytest -q -n 2 -p no:cacheprovider \
    tests/federation tests/data tests/metrics tests/storage tests/runs tests/report tests/cli tests/training \
    tests/study tests/tasks tests/test_config.py tests/test_settings.py tests/test_plugins.py
