"""A process that forks runs, once for each file that asks for it."""

import pytest

from tests.training.killable import Worker


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()
