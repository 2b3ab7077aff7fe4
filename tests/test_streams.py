"""Keys and generators: different for different names, the same in every process."""

import subprocess
import sys

import numpy as np
import pytest

from personafl.streams import generator, mix, name_key, stream_key

BITS = 64


def bits_set(values: np.ndarray) -> np.ndarray:
    return np.unpackbits(values.view(np.uint8).reshape(*values.shape, 8), axis=-1)


def test_mix_has_no_collisions_on_a_grid():
    """Two million small (key, value) pairs: chance alone would give a collision once in ten million runs."""
    made = mix(np.arange(2000, dtype=np.uint64)[:, None], np.arange(1000)[None, :])
    assert len(np.unique(made)) == made.size


def test_mix_has_no_collisions_from_random_keys():
    found = np.random.default_rng(0).integers(2**64, size=2000, dtype=np.uint64)
    made = mix(found[:, None], np.arange(500)[None, :])
    assert len(np.unique(made)) == made.size


def test_chains_of_mix_have_no_collisions():
    """(seed, round, client), as a run derives them."""
    made = mix(
        mix(mix(name_key("batches"), np.arange(20))[:, None], np.arange(100))[..., None],
        np.arange(500, dtype=np.uint64),
    )
    assert made.shape == (20, 100, 500)
    assert len(np.unique(made)) == made.size


@pytest.mark.parametrize("of", ["key", "value"])
@pytest.mark.parametrize("start", ["random", "small"])
def test_flipping_one_input_bit_flips_half_of_the_output_bits(of, start):
    rng = np.random.default_rng(0)
    count = 2000
    if start == "random":
        key, value = rng.integers(2**64, size=(2, count), dtype=np.uint64)
    else:
        key, value = np.arange(count, dtype=np.uint64), np.arange(count, dtype=np.uint64)[::-1].copy()
    for bit in range(BITS):
        flip = np.uint64(1 << bit)
        other = mix(key ^ flip, value) if of == "key" else mix(key, value ^ flip)
        flipped = bits_set(mix(key, value) ^ other).mean(axis=0)
        assert abs(flipped.mean() - 0.5) < 0.02, bit
        assert np.abs(flipped - 0.5).max() < 0.1, bit


def test_every_output_bit_is_set_half_of_the_time():
    made = mix(name_key("bits"), np.arange(20_000))
    assert np.abs(bits_set(made).mean(axis=0) - 0.5).max() < 5 * np.sqrt(0.25 / 20_000)


def test_the_order_of_mixing_matters():
    assert mix(mix(np.uint64(1), 2), 3) != mix(mix(np.uint64(1), 3), 2)


def test_mix_works_elementwise_and_on_large_and_negative_numbers():
    keys = np.array([1, 2**63, 2**64 - 1], np.uint64)
    assert mix(keys, 5).tolist() == [int(mix(key, 5)) for key in keys]
    assert mix(np.uint64(3), np.arange(4)).tolist() == [int(mix(np.uint64(3), value)) for value in range(4)]
    assert mix(np.uint64(3), np.uint64(2**64 - 1)) == mix(np.uint64(3), -1)
    assert mix(keys, 5).dtype == np.uint64


def test_mix_leaves_its_arguments_alone():
    keys, values = np.arange(5, dtype=np.uint64), np.arange(5)
    mix(keys, values)
    assert keys.tolist() == values.tolist() == [0, 1, 2, 3, 4]


def test_name_keys_differ():
    names = [f"client-{m}" for m in range(100_000)] + ["", " ", "Client-1", "clïent"]
    assert len({int(name_key(name)) for name in names}) == len(names)


def test_streams_differ_by_seed_purpose_and_round():
    made = {
        int(stream_key(seed, purpose, round))
        for seed in range(30)
        for purpose in ("cohort", "batches", "model", "split")
        for round in range(50)
    }
    assert len(made) == 30 * 4 * 50
    assert stream_key(0, "cohort") == stream_key(0, "cohort", 0)


def test_generators_of_neighbouring_rounds_are_unrelated():
    draws = np.array([generator(0, "cohort", round).random(2000) for round in range(10)])
    off_diagonal = np.corrcoef(draws)[~np.eye(10, dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / np.sqrt(2000)


def test_another_process_draws_the_same():
    """Hash randomization is on there, and other random numbers were drawn before."""
    program = (
        "import random, numpy as np; random.random(); np.random.rand(3)\n"
        "from personafl.streams import generator, mix, name_key, stream_key\n"
        "print(int(name_key('client-7')), int(stream_key(3, 'cohort', 5)), int(mix(name_key('a'), 9)),"
        " generator(3, 'cohort', 5).integers(2**62, size=3).tolist())"
    )
    here = (
        f"{int(name_key('client-7'))} {int(stream_key(3, 'cohort', 5))} {int(mix(name_key('a'), 9))}"
        f" {generator(3, 'cohort', 5).integers(2**62, size=3).tolist()}"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_keys_stay_what_they_are():
    """Old runs can be resumed only while these numbers hold."""
    assert int(name_key("client-7")) == 17146581279606388137
    assert int(stream_key(3, "cohort", 5)) == 16183187678990768843
    assert int(mix(np.uint64(1), 2)) == 3768759642134115001
    assert generator(3, "cohort", 5).integers(1000, size=4).tolist() == [8, 273, 30, 133]
