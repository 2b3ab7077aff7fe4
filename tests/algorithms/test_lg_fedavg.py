"""LG-FedAvg against plain torch in float64, and against FedPer with the parts exchanged."""

import numpy as np
import pytest

from personafl.algorithms import FedPer, LGFedAvg, Separate
from personafl.errors import ConfigError
from tests.oracles.parts import (
    BODY,
    EVERYTHING,
    HEAD,
    HEAD_SIZE,
    descended,
    initial,
    mean,
    personal,
    start,
    trained,
    vector,
    vectors,
)


def oracle(weighted: bool, rounds: int = 3) -> np.ndarray:
    head, bodies = initial(), [initial()] * 3
    for _ in range(rounds):
        bodies = [descended({**bodies[m], **{n: head[n] for n in HEAD}}, m) for m in range(3)]
        head = mean(bodies, weighted)
    return vectors([{**own, **{n: head[n] for n in HEAD}} for own in bodies])


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, weights, engine):
    run = trained(LGFedAvg(weights=weights), tmp_path, engine=engine)
    np.testing.assert_allclose(personal(run), oracle(weights == "samples"), rtol=1e-4, atol=1e-5)


def test_it_is_fedper_that_calls_the_body_its_head(tmp_path):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one = trained(LGFedAvg(), tmp_path / "a", **options)
    two = trained(FedPer(head_names=BODY), tmp_path / "b", **options)
    np.testing.assert_array_equal(personal(one), personal(two))
    assert one.traffic == two.traffic == dict.fromkeys(("bytes_up", "bytes_down"), 3 * 3 * 4 * HEAD_SIZE)


def test_one_client_is_alone(tmp_path):
    one, two = (trained(a, tmp_path / a.name, clients=1) for a in (LGFedAvg(), Separate()))
    np.testing.assert_allclose(personal(one), personal(two), rtol=1e-6)


def test_the_head_is_the_group_head(tmp_path):
    run = trained(LGFedAvg(), tmp_path, rounds=1, groups={"head": 0.0})
    expected = vectors([descended(initial(), m, BODY) for m in range(3)])
    np.testing.assert_allclose(personal(run), expected, rtol=1e-4, atol=1e-5)


def test_a_client_that_was_never_active_has_the_first_body_and_the_current_head(tmp_path):
    run = trained(LGFedAvg(), tmp_path, rounds=1, clients=10, activity=0.1)
    idle = run.active == 0
    assert idle.sum() == 9
    expected = np.concatenate([vector(initial()).astype(np.float32)[:-HEAD_SIZE], run.server["head"].numpy()])
    np.testing.assert_array_equal(personal(run)[idle], np.tile(expected, (9, 1)))
    assert run.clients.store.get(np.flatnonzero(~idle))["body"].shape == (1, EVERYTHING - HEAD_SIZE)


def test_a_head_that_is_the_whole_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.head = 3: must be fewer layers for lg-fedavg"):
        start(LGFedAvg(head=3), tmp_path)
