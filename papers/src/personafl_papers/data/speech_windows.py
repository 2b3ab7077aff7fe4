"""What Google's speech embedding hears: windows of 76 frames of 32 mel bands, by the file that comes with it.

The embedding's own melspectrogram.onnx turns sound of 16,000 samples a second, from −1 to 1, into decibels; x/10 + 2 is
what the embedding takes. Clips of 8,000 samples a second are resampled to 16,000 (`scipy.signal.resample_poly`), which
adds no frequencies: above 4 kHz there is nothing, where the embedding's training data had sound. The file cuts decibels
off 80 below the loudest place of all that it is given, so each clip goes through alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from personafl.errors import ConfigError
from personafl.pretrained.onnx import OnnxModule
from personafl_papers.data.audio import Waves

FRAMES, BANDS = 76, 32
STARTS = (0, 21)
"""Of the windows in the 97 frames of a second: the first and the last, which cover all of it."""


def windows(waves: Waves, file: Path) -> NDArray[np.float32]:
    """The windows of one-second clips (N, 8000) at 8 kHz: (N, 2, 76, 32, 1), as the embedding takes them."""
    from scipy.signal import resample_poly

    front = OnnxModule(file)
    fine = torch.from_numpy(np.asarray(resample_poly(waves, 2, 1, axis=1), np.float32))
    out = np.empty((len(fine), len(STARTS), FRAMES, BANDS, 1), np.float32)
    for clip, into in zip(fine, out, strict=True):
        decibels = front(clip[None]).numpy().squeeze()
        if decibels.shape != (STARTS[-1] + FRAMES, BANDS):
            raise ConfigError(
                f"{file} makes {decibels.shape} of a second of sound, expected {(STARTS[-1] + FRAMES, BANDS)}: give "
                "the melspectrogram.onnx that comes with the speech embedding"
            )
        for window, start in enumerate(STARTS):
            into[window, ..., 0] = decibels[start : start + FRAMES] / 10 + 2
    return out
