"""A federation of three sites in processes of their own, once for each file that asks for it."""

import pytest


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    from tests.backends.deploy.live import Live  # which needs Flower

    live = Live(tmp_path_factory.mktemp("live"))
    with live.deployment:
        live.deployment.start()
        yield live
