"""Tests run on tiny models, where a second thread costs more than it brings; they download nothing."""

import tempfile

import pytest
import torch

torch.set_num_threads(1)


def pytest_make_parametrize_id(val, argname):
    """Bytes are not a name: what gzip wrote holds the time, and two processes must find the same tests."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def own_cache():
    """A cache that is empty at first and gone in the end: what is prepared of real data is large."""
    with tempfile.TemporaryDirectory(prefix="personafl-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSONAFL_CACHE", folder)
        patch.setenv("PERSONAFL_OFFLINE", "1")
        yield
