"""FedBABU against plain torch in float64, and against FedPer and fedavg-ft."""

import numpy as np
import pytest

from personafl.algorithms import FedBABU, FedPer
from personafl.errors import ConfigError
from tests.oracles.parts import (
    BODY,
    EVERYTHING,
    HEAD,
    HEAD_SIZE,
    LR,
    PARAMETERS,
    STEPS,
    descended,
    initial,
    mean,
    personal,
    start,
    trained,
    vector,
    vectors,
)

TUNED = 3


def body_of(weighted: bool, rounds: int = 3):
    """The global model: trained bodies, averaged, with the head as it was."""
    now = initial()
    for _ in range(rounds):
        now = mean([descended(now, m, BODY, STEPS) for m in range(3)], weighted)
    return now


@pytest.mark.parametrize("weights", ["samples", "equal"])
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_it_is_the_papers_algorithm_in_plain_torch(tmp_path, weights, engine):
    run = trained(FedBABU(weights=weights, fine_tune_steps=TUNED), tmp_path, engine=engine)
    expected = body_of(weights == "samples")
    found = run.algorithm.global_model(run.server)
    np.testing.assert_allclose(found, vector(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[-HEAD_SIZE:], vector(initial()).astype(np.float32)[-HEAD_SIZE:])
    tuned = vectors([descended(expected, m, PARAMETERS, TUNED) for m in range(3)])
    np.testing.assert_allclose(personal(run), tuned, rtol=1e-4, atol=1e-5)


def test_the_head_may_be_fine_tuned_alone(tmp_path):
    run = trained(FedBABU(fine_tune="head", fine_tune_steps=TUNED), tmp_path)
    tuned = vectors([descended(body_of(True), m, HEAD, TUNED) for m in range(3)])
    np.testing.assert_allclose(personal(run), tuned, rtol=1e-4, atol=1e-5)


def test_without_fine_tuning_it_is_fedper_whose_head_has_rate_0(tmp_path):
    options = {"batch_size": 4, "clients": 6, "activity": 0.5}
    one = trained(FedBABU(fine_tune_steps=0), tmp_path / "a", **options)
    two = trained(FedPer(), tmp_path / "b", groups={"head": 0.0}, **options)
    np.testing.assert_allclose(personal(one), personal(two), rtol=1e-6, atol=1e-7)
    assert (personal(one) == personal(one)[0]).all()


@pytest.mark.parametrize("fine_tune", ["all", "head"])
def test_rates_by_group_are_those_of_its_own_head(tmp_path, fine_tune):
    """Two layers are the head here, also while it is fine-tuned."""
    algorithm = FedBABU(head=2, fine_tune=fine_tune, fine_tune_steps=1)
    run = trained(algorithm, tmp_path, rounds=0, groups={"head": 2.0, "body": 0.0})
    names = [name for name in PARAMETERS if not name.startswith("0.")]
    expected = vectors([descended(initial(), m, names, 1, 2 * LR) for m in range(3)])
    np.testing.assert_allclose(personal(run), expected, rtol=1e-4, atol=1e-5)


def test_a_client_that_was_never_active_fine_tunes_too_and_only_bodies_travel(tmp_path):
    run = trained(FedBABU(fine_tune_steps=1), tmp_path, rounds=1, clients=6, activity=0.2)
    idle = run.active == 0
    assert idle.sum() == 5
    now = run.clients.task.state_dict(run.algorithm.global_model(run.server))
    shaped = {name: value.double() for name, value in now.items()}
    for m in np.flatnonzero(idle)[:3]:
        tuned = vector(descended(shaped, int(m), PARAMETERS, 1))
        np.testing.assert_allclose(personal(run)[m], tuned, rtol=1e-4, atol=1e-5)
    assert run.traffic == dict.fromkeys(("bytes_up", "bytes_down"), 4 * (EVERYTHING - HEAD_SIZE))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": 3}, r"algorithm\.head = 3: must be fewer layers for fedbabu: the head would be the whole model"),
        ({"fine_tune_steps": -1}, r"algorithm\.fine_tune_steps = -1: must be at least 0"),
        ({"fine_tune": "body"}, r"algorithm\.fine_tune = 'body': must be \"all\" or \"head\""),
    ],
)
def test_bad_settings_are_one_line(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        start(FedBABU(**settings), tmp_path)
    assert "\n" not in str(refused.value)
