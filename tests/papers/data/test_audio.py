"""Facts about sound: µ-law and wav files are what their formats say, and spectrograms are what the formulas say."""

import struct
import tracemalloc

import numpy as np
import pytest

from personafl.errors import DataError
from personafl_papers.data.audio import (
    HIGHEST,
    LOWEST,
    MOST_MELS,
    RATE,
    SILENCE,
    SPECTRUM,
    frames,
    log_mel,
    mel_centres,
    mel_filters,
    mulaw_decoded,
    mulaw_encoded,
    read_wav,
)

SECOND = np.arange(RATE) / RATE


def wav(pcm, rate=16_000, channels=1, bits=16, form=1, said=None, extra=b""):
    """A wav file, byte for byte: RIFF, its length, WAVE, the format, other chunks, the samples."""
    block = channels * bits // 8
    layout = struct.pack("<4sIHHIIHH", b"fmt ", 16, form, channels, rate, rate * block % 2**32, block, bits)
    body = b"WAVE" + layout + extra + struct.pack("<4sI", b"data", len(pcm) if said is None else said) + pcm
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def tone(hertz, amplitude=1.0, rate=RATE):
    return (amplitude * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)).astype(np.float32)


# --- µ-law ------------------------------------------------------------------------------------------------------


def test_mulaw_codes_rise_from_minus_one_to_one_and_mirror_at_zero():
    values = mulaw_decoded(np.arange(256, dtype=np.uint8))
    assert values.dtype == np.float32 and values[0] == -1 and values[-1] == 1
    assert (np.diff(values) > 0).all() and np.array_equal(values, -values[::-1])
    assert values[192] == pytest.approx((256 ** (129 / 255) - 1) / 255, rel=1e-6)


def test_mulaw_codes_survive_and_values_come_back_within_half_a_step():
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(mulaw_encoded(mulaw_decoded(codes)), codes)
    x = np.random.default_rng(0).uniform(-1, 1, 10_000) ** 3
    # A step is 2/255 on the curve, so half of one changes |x| + 1/255 by a factor of 256^(1/255).
    assert (np.abs(mulaw_decoded(mulaw_encoded(x)) - x) <= (np.abs(x) + 1 / 255) * (256 ** (1 / 255) - 1) + 1e-7).all()
    assert mulaw_encoded(np.array([-7.0, 0.0, 7.0])).tolist() == [0, 128, 255]


# --- wav --------------------------------------------------------------------------------------------------------


def test_a_wav_at_8_khz_gives_its_samples():
    pcm = np.array([-32768, -1, 0, 1, 16384, 32767], "<i2")
    heard = read_wav(wav(pcm.tobytes(), rate=8_000), "a.wav")
    assert heard.dtype == np.float32 and np.array_equal(heard, pcm / np.float32(32768))


def test_chunks_that_mean_nothing_to_us_are_passed_over():
    pcm = np.arange(6, dtype="<i2")
    listed = struct.pack("<4sI", b"LIST", 5) + b"hello\0"  # an odd length is padded
    assert np.array_equal(read_wav(wav(pcm.tobytes(), rate=8_000, extra=listed), "a.wav"), pcm / np.float32(32768))


def test_from_16_khz_low_tones_stay_and_tones_above_4_khz_do_not_come_back_as_others():
    low, high = (
        read_wav(wav((tone(hertz, 0.5, 16_000) * 32767).astype("<i2").tobytes()), "a.wav") for hertz in (1_000, 6_000)
    )
    inside = slice(100, -100)  # away from the edges
    assert len(low) == RATE and np.abs(low - tone(1_000, 0.5))[inside].max() < 0.002
    assert np.abs(high[inside]).max() < 0.001


def test_an_empty_wav_is_no_sound():
    assert len(read_wav(wav(b""), "a.wav")) == 0


PCM = np.arange(100, dtype="<i2").tobytes()


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "not a readable wav file: it ends inside its header"),
        (b"fLaC" + bytes(200), "not a readable wav file: file does not start with RIFF id"),
        (wav(PCM)[:20], "not a readable wav file"),
        (wav(PCM)[:40], "not a readable wav file"),
        (wav(PCM).replace(b"WAVE", b"AVI "), "not a readable wav file: not a WAVE file"),
        (wav(PCM).replace(b"fmt ", b"nope"), "not a readable wav file"),
        (wav(PCM, form=3, bits=32), "not a readable wav file: unknown format: 3"),
        (wav(PCM, form=7, bits=8), "not a readable wav file: unknown format: 7"),
        (wav(PCM, channels=0), "not a readable wav file: bad # of channels"),
        (wav(PCM)[:-10], "is truncated: its header promises 100 samples and 95 are there"),
        (wav(PCM, said=0xFFFFFFF0), "is truncated: its header promises 2147483640 samples and 100 are there"),
        (wav(PCM, channels=2), "has 2 channels of 16 bits at 16000 Hz; expected 1 channel of 16 bits at 8000 or 16000"),
        (wav(PCM, bits=8), "has 1 channels of 8 bits"),
        (wav(PCM, bits=24), "has 1 channels of 24 bits"),
        (wav(PCM, rate=44_100), "at 44100 Hz"),
        (wav(PCM, rate=0xFFFFFFFF), "at 4294967295 Hz"),
    ],
)
def test_what_is_not_such_a_wav_is_refused_in_one_line(content, said):
    tracemalloc.start()
    with pytest.raises(DataError) as refused:
        read_wav(content, "zero/1_nohash_0.wav")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(refused.value)
    assert message.startswith("zero/1_nohash_0.wav ") and said in message and "\n" not in message
    assert peak < 1e6


@pytest.mark.parametrize("seed", range(200))
def test_damaged_wavs_are_read_or_refused_and_nothing_else(seed):
    rng = np.random.default_rng(seed)
    content = bytearray(wav(PCM))
    for place in rng.integers(0, 48, size=3):
        content[place] = rng.integers(256)
    try:
        assert len(read_wav(bytes(content), "a.wav")) <= 100
    except DataError as error:
        assert str(error).startswith("a.wav ")


# --- log-mel ----------------------------------------------------------------------------------------------------


def test_centres_are_equally_far_apart_in_mel():
    def mel(hertz):
        return 1127.01048 * np.log(1 + np.asarray(hertz) / 700)  # HTK's scale, by the other way to write it

    centres = mel_centres(40)
    steps = np.diff(mel([LOWEST, *centres, HIGHEST]))
    assert steps == pytest.approx(np.full(41, (mel(HIGHEST) - mel(LOWEST)) / 41), rel=1e-6)
    assert mel(1_000) == pytest.approx(1_000, abs=0.1)


@pytest.mark.parametrize("mels", [1, 8, 40, MOST_MELS])
def test_filters_are_triangles_that_divide_power_among_bands(mels):
    filters, centres = mel_filters(mels), mel_centres(mels)
    frequencies = np.arange(SPECTRUM // 2 + 1) * RATE / SPECTRUM
    assert filters.shape == (mels, len(frequencies)) and filters.min() == 0 and filters.max() <= 1
    assert (filters.max(axis=1) > 0.5).all()  # no band between two frequencies
    assert (np.abs(frequencies[filters.argmax(axis=1)] - centres) <= RATE / SPECTRUM).all()
    between = (frequencies >= centres[0]) & (frequencies <= centres[-1])
    assert filters[:, between].sum(axis=0) == pytest.approx(1, abs=1e-5)
    assert not filters[:, (frequencies <= LOWEST) | (frequencies >= HIGHEST)].any()


def test_a_spectrogram_has_98_frames_of_25_ms_every_10_ms():
    x = log_mel(np.zeros((3, RATE), np.float32))
    assert x.shape == (3, 1, 40, 98) and x.dtype == np.float32 and frames(RATE) == 98
    assert x == pytest.approx(np.log(SILENCE), abs=1e-4)
    click = np.zeros((1, RATE), np.float32)
    click[0, 4_000] = 1
    heard = np.flatnonzero(log_mel(click)[0, 0, 20] > np.log(SILENCE) + 1)
    assert heard.tolist() == [48, 49]  # they start at samples 3840 and 3920; the window of frame 50 is 0 there


@pytest.mark.parametrize("hertz", [200, 440, 1_000, 1_750, 3_000])
@pytest.mark.parametrize("amplitude", [1.0, 0.05])
def test_a_tone_is_in_the_band_of_its_frequency_with_half_its_squared_amplitude(hertz, amplitude):
    x = log_mel(tone(hertz, amplitude)[None])[0, 0]
    assert (x.argmax(axis=0) == np.abs(mel_centres(40) - hertz).argmin()).all()
    assert (np.exp(x) - SILENCE).sum(axis=0) == pytest.approx(amplitude**2 / 2, rel=0.01)


def test_power_is_that_of_a_plain_fourier_sum():
    rng = np.random.default_rng(1)
    wave = rng.standard_normal((1, 1_000)).astype(np.float32)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    angles = 2 * np.pi * np.outer(np.arange(257), np.arange(200)) / 512
    for frame, mels in ((0, 40), (7, 8), (10, 8)):
        cut = wave[0, 80 * frame : 80 * frame + 200] * window
        power = (np.cos(angles) @ cut) ** 2 + (np.sin(angles) @ cut) ** 2
        power[1:-1] *= 2
        power /= 512 * (window**2).sum()
        assert power.sum() == pytest.approx((cut**2).sum() / (window**2).sum(), rel=1e-5)  # Parseval
        assert np.exp(log_mel(wave, mels)[0, 0, :, frame]) == pytest.approx(mel_filters(mels) @ power, rel=1e-3)


def test_ten_times_louder_is_20_db_more():
    wave = np.random.default_rng(2).standard_normal((1, RATE)).astype(np.float32) * 0.1
    assert log_mel(10 * wave) - log_mel(wave) == pytest.approx(np.log(100), abs=2e-3)


def test_many_clips_are_as_one():
    waves = np.random.default_rng(3).standard_normal((300, 400)).astype(np.float32)
    assert log_mel(waves)[[0, 255, 256, 299]] == pytest.approx(
        np.concatenate([log_mel(waves[k : k + 1]) for k in (0, 255, 256, 299)]), abs=1e-4
    )
