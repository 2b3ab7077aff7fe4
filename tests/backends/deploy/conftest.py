"""A federation of three sites in processes of their own, once for each file that asks for it."""

import pytest


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    from tests.backends.deploy.live import Live  # which needs Flower

    live = Live(tmp_path_factory.mktemp("live"))
    with live.deployment:
        live.deployment.start()
        yield live


@pytest.fixture
def tap(live):
    """Sites that reach the server by way of a tap."""
    from tests.backends.deploy.live import PATIENCE, SITES
    from tests.backends.deploy.tap import Tap

    deployment = live.deployment
    files = {name: deployment.layout.site(name) / "connection.env" for name in SITES}
    before = {name: file.read_text() for name, file in files.items()}
    tap = Tap(deployment.layout.operator, deployment.layout.private)  # it has no site's certificate to show nginx
    deployment.stop(*SITES)
    with tap.listening() as address:
        for name, file in files.items():
            file.write_text(before[name].replace(deployment.layout.address, address))
            deployment.restart_site(name, PATIENCE)
        yield tap
        deployment.stop(*SITES)
    for name, file in files.items():
        file.write_text(before[name])
