"""Devices that listen: five types with microphones of their own, in three states, made by signal processing.

They stand in for the device types A to E of the Self-FL paper's private recordings. All numbers here are ours, chosen
so that the types differ as cheap and dear hardware does; the paper publishes none.

What a microphone hears is the clip, and in some states a sound that the device itself makes, at a given signal-to-noise
ratio (power of the whole clip over power of the whole sound):

| state    | sound                                                                       | SNR  |
|----------|-----------------------------------------------------------------------------|------|
| normal   | none                                                                        |      |
| playback | music: three plucked notes of a pentatonic scale at a time, 2 to 5 times a second | 5 dB |
| alarm    | beeps between 800 and 1,900 Hz, 2 to 6 a second, or a siren around 1 kHz     | 0 dB |

It then passes the microphone's frequency response (a linear-phase filter through the gains below, in dB), is amplified,
gets white noise of the given level (dB below full scale), and is cut off at full scale:

| type | like                     | 125 Hz | 250 | 500 | 1k | 2k | 3k  | 3.8k | amplified | noise |
|------|--------------------------|--------|-----|-----|----|----|-----|------|-----------|-------|
| A    | a large loudspeaker      | 0      | 0   | 0   | 0  | 0  | 0   | 0    | 0 dB      | −60   |
| B    | a small loudspeaker      | −12    | −6  | −2  | 0  | 3  | 5   | 3    | −3 dB     | −55   |
| C    | a battery-powered remote | 3      | 3   | 2   | 0  | −6 | −12 | −18  | −6 dB     | −50   |
| D    | a device with a screen   | −3     | −1  | 0   | 4  | 0  | −3  | −6   | 3 dB      | −58   |
| E    | a telephone headset      | −20    | −12 | −3  | 0  | 0  | −6  | −18  | −9 dB     | −52   |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from personafl.streams import generator
from personafl_papers.data.audio import RATE, Waves

STATES = ("normal", "playback", "alarm")
SNR = {"playback": 5.0, "alarm": 0.0}
"""Signal-to-noise ratio in dB of the states in which the device makes a sound."""

FREQUENCIES = (125.0, 250.0, 500.0, 1000.0, 2000.0, 3000.0, 3800.0)
TAPS = 257  # a filter of 32 ms, long enough to tell 125 Hz from 250


@dataclass(frozen=True)
class Device:
    """A device type.

    Attributes
    ----------
    response : tuple of float
        The microphone's gain in dB at each of FREQUENCIES; between them dB are interpolated over log frequency.
    amplification
        Gain in dB at all frequencies.
    noise
        Level in dB of the white noise that the electronics add, 0 being an RMS of 1.
    """

    response: tuple[float, ...]
    amplification: float
    noise: float


DEVICES = {
    "A": Device((0, 0, 0, 0, 0, 0, 0), 0, -60),
    "B": Device((-12, -6, -2, 0, 3, 5, 3), -3, -55),
    "C": Device((3, 3, 2, 0, -6, -12, -18), -6, -50),
    "D": Device((-3, -1, 0, 4, 0, -3, -6), 3, -58),
    "E": Device((-20, -12, -3, 0, 0, -6, -18), -9, -52),
}


def recorded(clips: Waves, device: str, states: Sequence[str], names: Sequence[str], seed: int) -> Waves:
    """The clips (N, samples) as one type of device records them, each in its state.

    Sounds and noise follow from (seed, the clip's name, device, state), so a recording is the same whichever other
    clips there are.

    >>> clip = np.zeros((1, 8000), np.float32)
    >>> heard = recorded(clip, "C", ["normal"], ["nothing"], seed=0)
    >>> round(float(20 * np.log10(heard.std())))
    -50
    """
    from scipy.signal import fftconvolve

    kind = DEVICES[device]
    streams = [generator(seed, f"devices/{name}/{device}/{state}") for name, state in zip(names, states, strict=True)]
    room = np.stack([mixed(*each) for each in zip(clips, states, streams, strict=True)])
    out = fftconvolve(room, microphone(device)[None], mode="same", axes=1)
    noise = np.stack([rng.standard_normal(clips.shape[1], np.float32) for rng in streams])
    return np.asarray(np.clip(out + noise * np.float32(10 ** (kind.noise / 20)), -1, 1), np.float32)


def mixed(clip: Waves, state: str, rng: np.random.Generator) -> Waves:
    """A clip with the sound of a state at that state's signal-to-noise ratio; a silent clip stays silent."""
    if state not in SNR:
        return clip
    sound = {"playback": music, "alarm": alarm}[state](len(clip), rng)
    level = np.sqrt(np.square(clip, dtype=np.float64).mean() / np.square(sound).mean()) * 10 ** (-SNR[state] / 20)
    return np.asarray(clip + level * sound, np.float32)


@cache
def microphone(device: str) -> NDArray[np.float32]:
    """The filter of a device type, its amplification included."""
    from scipy.signal import firwin2

    kind = DEVICES[device]
    grid = np.linspace(0, RATE / 2, 513)
    decibels = np.interp(np.log(np.maximum(grid, 1)), np.log(FREQUENCIES), kind.response) + kind.amplification
    return np.asarray(firwin2(TAPS, grid, 10 ** (decibels / 20), fs=RATE), np.float32)


def music(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Three plucked notes at every beat, starting somewhere inside a beat."""
    notes = _plucked_notes(samples)
    out = np.zeros(samples)
    beat = int(rng.uniform(0.2, 0.5) * RATE)
    for start in range(-int(rng.integers(beat)), samples, beat):
        for pitch, loudness in zip(rng.integers(len(notes), size=3), rng.uniform(0.5, 1, 3), strict=True):
            heard = notes[pitch, max(0, -start) : samples - max(0, start)]
            out[max(0, start) : max(0, start) + len(heard)] += loudness * heard
    return out


def alarm(samples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Beeps with their first overtone, or a siren that sweeps up and down."""
    time = np.arange(samples) / RATE
    start = rng.uniform(0, 2 * np.pi)
    if rng.random() < 0.5:
        pitch, rate = rng.uniform(800, 1_900), rng.uniform(2, 6)
        open_ = np.clip(8 * np.sin(2 * np.pi * rate * time + start), 0, 1)
        return np.asarray(open_ * (np.sin(2 * np.pi * pitch * time) + 0.3 * np.sin(4 * np.pi * pitch * time)))
    middle, width, rate = rng.uniform(700, 1_300), rng.uniform(200, 500), rng.uniform(1, 4)
    # The frequency middle + width·cos(2π·rate·t + start), integrated.
    return np.asarray(np.sin(2 * np.pi * middle * time + width / rate * np.sin(2 * np.pi * rate * time + start)))


@cache
def _plucked_notes(samples: int) -> NDArray[np.float64]:
    """Fifteen notes of a pentatonic scale, 110 to 784 Hz, whose overtones fade the faster the higher they are."""
    time = np.arange(samples) / RATE
    half_tones = np.add.outer([0, 12, 24], [0, 3, 5, 7, 10]).ravel()
    out = np.zeros((len(half_tones), samples))
    for note, pitch in zip(out, 110 * 2 ** (half_tones / 12), strict=True):
        for overtone in range(1, 9):
            if overtone * pitch < RATE / 2:
                note += np.sin(2 * np.pi * overtone * pitch * time) * np.exp(-3 * overtone * time) / overtone
    return out
