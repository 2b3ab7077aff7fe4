"""Facts about the simulated devices: they have the numbers that their tables say."""

import re

import numpy as np
import pytest
from scipy.signal import freqz

from personafl.streams import generator
from personafl_papers.data import devices
from personafl_papers.data.audio import RATE, log_mel
from personafl_papers.data.devices import DEVICES, FREQUENCIES, SNR, STATES, alarm, microphone, mixed, music, recorded


def noise(clips, seed=0, level=0.05):
    return (level * np.random.default_rng(seed).standard_normal((clips, RATE))).astype(np.float32)


def decibels(wave):
    return 10 * np.log10(np.square(wave, dtype=np.float64).mean())


def record(clips, device, state="normal", seed=0):
    return recorded(clips, device, [state] * len(clips), [f"clip-{k}" for k in range(len(clips))], seed)


def test_the_documented_table_is_the_one_in_use():
    rows = re.findall(r"^\| ([A-E]) +\|[^|]*\|(.*)\|$", devices.__doc__, re.MULTILINE)
    assert [name for name, _ in rows] == list(DEVICES)
    for name, cells in rows:
        numbers = [float(number) for number in re.findall(r"-?\d+", cells.replace("−", "-"))]
        kind = DEVICES[name]
        assert numbers == [*kind.response, kind.amplification, kind.noise]
    sounds = dict(re.findall(r"^\| (\w+) +\|.*\| (\d) dB \|$", devices.__doc__, re.MULTILINE))
    assert {state: float(snr) for state, snr in sounds.items()} == SNR


@pytest.mark.parametrize("device", DEVICES)
def test_filters_have_the_documented_response(device):
    kind = DEVICES[device]
    _, response = freqz(microphone(device), worN=FREQUENCIES, fs=RATE)
    wanted = np.array(kind.response) + kind.amplification
    assert 20 * np.log10(np.abs(response)) == pytest.approx(wanted, abs=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_recorded_tone_is_as_loud_as_the_response_says(device, at):
    kind = DEVICES[device]
    clip = 0.2 * np.sin(2 * np.pi * FREQUENCIES[at] * np.arange(RATE) / RATE).astype(np.float32)[None]
    heard = record(clip, device)[:, 500:-500]
    assert decibels(heard) - decibels(clip) == pytest.approx(kind.response[at] + kind.amplification, abs=1)


@pytest.mark.parametrize("device", DEVICES)
def test_silence_is_recorded_as_white_noise_of_the_documented_level(device):
    heard = record(np.zeros((4, RATE), np.float32), device)
    assert decibels(heard) == pytest.approx(DEVICES[device].noise, abs=0.2)
    power = (np.abs(np.fft.rfft(heard, axis=1)) ** 2).mean(axis=0)[1:-1].reshape(3, -1).mean(axis=1)
    assert power / power.mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("state", SNR)
@pytest.mark.parametrize("loudness", [1.0, 0.001])
def test_sounds_are_mixed_at_the_documented_ratio(state, loudness):
    for k, clip in enumerate(noise(5, level=0.1 * loudness)):
        added = mixed(clip, state, generator(0, str(k))) - clip
        assert decibels(clip) - decibels(added) == pytest.approx(SNR[state], abs=0.01)


def test_normal_adds_nothing_and_a_silent_clip_stays_silent():
    clip = noise(1)[0]
    assert mixed(clip, "normal", generator(0, "a")) is clip
    for state in STATES:
        assert not mixed(np.zeros(RATE, np.float32), state, generator(0, "a")).any()


def test_music_has_notes_of_its_scale_and_alarms_are_narrow_and_high():
    scale = 110 * 2 ** (np.add.outer([0, 12, 24], [0, 3, 5, 7, 10]).ravel() / 12)
    for k in range(20):
        spectrum = np.abs(np.fft.rfft(music(RATE, generator(k, "music")))) ** 2  # a bin a hertz
        strongest = spectrum.argmax()
        assert np.abs(np.outer(np.arange(1, 9), scale) - strongest).min() < 4
        spectrum = np.abs(np.fft.rfft(alarm(RATE, generator(k, "alarm")))) ** 2
        assert spectrum[200:3_900].sum() > 0.99 * spectrum.sum()


def test_a_recording_follows_from_the_seed_and_the_clips_name_only():
    clips = noise(3)
    names, states = ["x", "y", "z"], ["normal", "playback", "alarm"]
    all_three = recorded(clips, "B", states, names, seed=1)
    assert np.array_equal(all_three, recorded(clips, "B", states, names, seed=1))
    assert all_three[1:2] == pytest.approx(recorded(clips[1:2], "B", ["playback"], ["y"], seed=1), abs=1e-6)
    for other in (
        recorded(clips, "B", states, names, seed=2),
        recorded(clips, "B", states, ["u", "v", "w"], seed=1),
        recorded(clips, "B", ["alarm", "normal", "normal"], names, seed=1),
    ):
        assert (np.abs(all_three - other).max(axis=1) > 1e-3).all()


def test_every_two_types_hear_the_same_sound_differently():
    clips = noise(4)
    spectra = {device: log_mel(record(clips, device)).mean(axis=(0, 1, 3)) * 10 / np.log(10) for device in DEVICES}
    for one in DEVICES:
        for other in DEVICES:
            difference = spectra[one] - spectra[other]
            if one < other:
                assert np.abs(difference).mean() > 3  # dB
                assert difference.std() > 1  # and not by loudness alone


def test_recordings_stay_within_full_scale():
    heard = record(noise(2, level=1.0), "D", "alarm")
    assert heard.dtype == np.float32 and np.abs(heard).max() == 1
