"""How long the emulated device's steps are on this host, over how long the scripts say.

A script's fault is as large as its loader's work is beside its steps. On cores twice as fast the
same steps would hide it, and on slow ones harmless loaders would starve. So the device is as much
faster or slower as the cores are.
"""

from __future__ import annotations

import io
import time

import numpy as np
from PIL import Image

VARIABLE = "EMULATED_STEP_SCALE"
"""The environment variable by which scripts know it; `emulated` reads it."""
_WRITTEN_FOR_S = 0.008
"""What `_seconds_to_decode` takes the cores for which the steps were written: those of an AMD EPYC
on which `import torch` takes 2.4 s."""
_TIMES, _ADDITIONS = 60, 20_000


def step_scale() -> float:
    """Return the factor by which steps are longer here than the scripts say."""
    content = _picture()
    return min(_seconds_to_decode(content) for _ in range(_TIMES)) / _WRITTEN_FOR_S


def _picture() -> bytes:
    low = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    written = io.BytesIO()
    picture = Image.fromarray(low).resize((640, 480), Image.Resampling.BICUBIC)
    picture.save(written, "JPEG", quality=90)
    return written.getvalue()


def _seconds_to_decode(content: bytes) -> float:
    """Decode, resize and normalize a picture, and run some Python, as workers do."""
    began_s = time.perf_counter()
    with Image.open(io.BytesIO(content)) as picture:
        small = picture.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
    np.asarray(small, np.float32) / 255 - 0.5
    total = 0
    for number in range(_ADDITIONS):
        total += number
    return time.perf_counter() - began_s
