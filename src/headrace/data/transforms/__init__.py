"""Decode, crops, flips and colour for images and masks: uint8 in, uint8 out.

Every random transform draws from Python's global `random` alone. The loader seeds it for each
sample, so the same sample of the same epoch looks the same whichever worker makes it.
"""

from __future__ import annotations
