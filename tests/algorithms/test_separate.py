import numpy as np

from personafl.algorithms import Separate
from tests.oracles.quadratic import personal, quadratics, train


def test_every_client_reaches_its_own_optimum(tmp_path):
    problem = quadratics()
    models = personal(train(problem, Separate(), tmp_path, rounds=100, lr=0.1))
    np.testing.assert_allclose(models, problem.z, rtol=1e-4, atol=1e-4)


def test_nothing_is_sent(tmp_path):
    runner = train(quadratics(), Separate(), tmp_path, rounds=3)
    assert runner.traffic == {"bytes_up": 0, "bytes_down": 0}


def test_a_client_that_was_never_active_has_the_initial_weights(tmp_path):
    problem = quadratics(clients=10)
    start = np.array([1.0, -2.0, 3.0])
    runner = train(problem, Separate(), tmp_path, rounds=1, activity=0.1, start=start)
    idle = runner.active == 0
    assert idle.sum() == 9
    np.testing.assert_array_equal(personal(runner)[idle], np.tile(start, (9, 1)))
