"""Sound: one-second clips at 8 kHz, kept as 8-bit µ-law, and the log-mel spectrograms that models hear."""

import io
import wave
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import DataError

Waves = NDArray[np.float32]
Codes = NDArray[np.uint8]

RATE = 8_000
"""Samples a second of every clip."""

WINDOW, HOP, SPECTRUM = 200, 80, 512  # 25 ms, 10 ms; the window is padded with zeros, for finer steps than 40 Hz
LOWEST, HIGHEST = 60.0, 4_000.0  # Hz: below are hum and offset, above is nothing at this rate
MOST_MELS = 64  # more bands than these and the lowest fall between two frequencies of the spectrum
SILENCE = 1e-9  # −90 dB, less than 8 bits can tell

_MU = 255
_CLIPS_AT_ONCE = 256
_RATES = (RATE, 2 * RATE)


def mulaw_decoded(codes: Codes) -> Waves:
    """Waves in −1 to 1 of 8-bit codes by the continuous µ-law, µ = 255: 0 is −1, 255 is 1, silence is 127 or 128.

    With c = 2·code/255 − 1, the value is sign(c)·(256^|c| − 1)/255. This is not the byte of a G.711 telephone line,
    which approximates the curve by straight pieces and inverts the bits.

    >>> mulaw_decoded(np.array([0, 128, 255], np.uint8)).tolist()
    [-1.0, 8.6...e-05, 1.0]
    """
    return _mulaw_values()[codes]


def mulaw_encoded(waves: NDArray[Any]) -> Codes:
    """The nearest codes of waves in −1 to 1; what is louder is cut off.

    >>> mulaw_encoded(np.array([-1.0, 0.0, 0.5, 7.0])).tolist()
    [0, 128, 239, 255]
    """
    x = np.clip(np.asarray(waves, np.float64), -1, 1)
    curve = np.sign(x) * np.log1p(_MU * np.abs(x)) / np.log1p(_MU)
    return np.asarray(np.floor((curve + 1) / 2 * _MU + 0.5), np.uint8)


def read_wav(content: bytes, what: str) -> Waves:
    """The wave at 8 kHz of a .wav file's bytes: 16-bit PCM, one channel, 16 or 8 kHz; `what` names it in errors.

    16 kHz are low-pass filtered before every second sample is dropped (`scipy.signal.resample_poly`).
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            form = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
            # The bytes are in memory already, so a header that promises more than there are costs nothing.
            promised, pcm = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{what} is not a readable wav file: {str(error) or 'it ends inside its header'}") from None
    if form[:2] != (1, 16) or form[2] not in _RATES:
        raise DataError(
            f"{what} has {form[0]} channels of {form[1]} bits at {form[2]} Hz; expected 1 channel of 16 bits at "
            f"{' or '.join(map(str, _RATES))} Hz"
        )
    if len(pcm) != 2 * promised:
        raise DataError(f"{what} is truncated: its header promises {promised} samples and {len(pcm) // 2} are there")
    samples = np.asarray(np.frombuffer(pcm, "<i2") / 32768, np.float32)
    if form[2] == RATE or not len(samples):
        return samples
    from scipy.signal import resample_poly

    return np.asarray(resample_poly(samples, 1, 2), np.float32)


def log_mel(waves: Waves, mels: int = 40) -> NDArray[np.float32]:
    """Log-mel spectrograms of waves (N, samples) at 8 kHz: (N, 1, mels, frames), frames = 1 + (samples − 200)//80.

    A frame is 25 ms under a Hann window w, every 10 ms. Its power spectrum is scaled so that it sums to the mean power
    Σw²x²/Σw² of the frame, 1/2 for a sine of amplitude 1, and summed into bands by `mel_filters`. The result is the
    natural logarithm of power + 1e-9.

    >>> log_mel(np.zeros((2, 8000), np.float32)).shape
    (2, 1, 40, 98)
    """
    out = np.empty((len(waves), 1, mels, frames(waves.shape[1])), np.float32)
    window = torch.hann_window(WINDOW)
    # Twice, for the negative frequencies; the two that have no negative, 0 and 4 kHz, are in no filter.
    filters = torch.from_numpy(mel_filters(mels)) * (2 / (SPECTRUM * float(window.square().sum())))
    edge = (SPECTRUM - WINDOW) // 2  # torch centres the window in the transform
    for start in range(0, len(waves), _CLIPS_AT_ONCE):
        some = torch.nn.functional.pad(torch.from_numpy(waves[start : start + _CLIPS_AT_ONCE]), (edge, edge))
        spectra = torch.stft(some, SPECTRUM, HOP, WINDOW, window, center=False, return_complex=True)
        power = filters @ (spectra.real.square() + spectra.imag.square())
        torch.log(power + SILENCE, out=torch.from_numpy(out[start : start + _CLIPS_AT_ONCE, 0]))
    return out


def frames(samples: int) -> int:
    """How many whole windows fit into so many samples."""
    return 1 + (samples - WINDOW) // HOP


def mel_centres(mels: int) -> NDArray[np.float64]:
    """The centre frequencies in Hz of the bands: equally far apart on HTK's scale, mel = 2595·log10(1 + f/700)."""
    lowest, highest = (2595 * np.log10(1 + hertz / 700) for hertz in (LOWEST, HIGHEST))
    return np.asarray(700 * (10 ** (np.linspace(lowest, highest, mels + 2) / 2595) - 1))[1:-1]


@cache
def mel_filters(mels: int) -> NDArray[np.float32]:
    """Triangles (mels, frequencies) of height 1, from one neighbour's centre over the own to the other neighbour's.

    Between the first and the last centre they sum to 1: power is divided among bands, none is lost.
    """
    points = np.concatenate([[LOWEST], mel_centres(mels), [HIGHEST]])
    frequencies = np.arange(SPECTRUM // 2 + 1) * (RATE / SPECTRUM)
    rising = (frequencies - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    falling = (points[2:, None] - frequencies) / (points[2:] - points[1:-1])[:, None]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)), np.float32)


@cache
def _mulaw_values() -> Waves:
    curve = np.arange(256) * (2 / _MU) - 1
    return np.asarray(np.sign(curve) * ((1.0 + _MU) ** np.abs(curve) - 1) / _MU, np.float32)
