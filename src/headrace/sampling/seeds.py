"""Seeds as pure functions of (seed, epoch, sample) or (seed, epoch, batch).

A worker seeds its generators with these before it makes a sample or collates a batch, so the result
does not depend on which worker made it, or on what that worker made before.
"""

from __future__ import annotations

from functools import lru_cache

from headrace.core.lazy import blake2b

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, made odd: the step of splitmix64."""

_SAMPLE, _BATCH = 1, 2


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Return the seed of one sample in one epoch, 0 to 2^64 - 1.

    Within one (seed, epoch) no two samples share a seed: splitmix64 is a bijection.
    """
    return mix64(_stream(seed, epoch, _SAMPLE) + sample * GOLDEN)


def batch_seed(seed: int, epoch: int, batch: int) -> int:
    """Return the seed for collating one batch, 0 to 2^64 - 1; see `sample_seed`."""
    return mix64(_stream(seed, epoch, _BATCH) + batch * GOLDEN)


def mix64(value: int) -> int:
    """Return splitmix64's finaliser of `value` modulo 2^64, a bijection of [0, 2^64).

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    value &= MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def combine(*parts: int) -> int:
    """Return one well-mixed number in [0, 2^64) for a sequence of integers."""
    mixed = 0
    for part in parts:
        mixed = mix64(mixed + GOLDEN + part)
    return mixed


def text_key(text: str) -> int:
    """Return a number in [0, 2^64) for a text, the same on every machine and in every run."""
    return int.from_bytes(blake2b(text.encode(), 8), "little")


@lru_cache(maxsize=16)
def _stream(seed: int, epoch: int, purpose: int) -> int:
    # Cached: it is needed for each sample, and changes once an epoch.
    return combine(seed, epoch, purpose)
