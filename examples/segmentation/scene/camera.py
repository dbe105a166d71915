"""Weather between the scene and the camera, and the camera's own faults."""

from __future__ import annotations

import functools

import cv2
import numpy as np
from numpy.typing import NDArray

from .canvas import HEIGHT, SKY, WIDTH, Canvas
from .noise import noise_patch
from .street import Street


def photograph(canvas: Canvas, street: Street, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the picture as a camera would give it, uint8[H, W, 3]."""
    light = canvas.picture.astype(np.float32)
    light = through_air(light, canvas, street, rng)
    if street.weather in {"night", "dusk"}:
        light = at_night(light, canvas, street, rng)
    if street.weather == "rain":
        light = in_rain(light, rng)
    if street.weather in {"clear", "dusk"} and rng.random() < 0.4:
        light = against_the_sun(light, street, rng)
    return by_camera(light, rng)


def through_air(
    light: NDArray[np.float32], canvas: Canvas, street: Street, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Let what is far fade into the haze: Koschmieder's law."""
    seen_m = {"fog": rng.uniform(15, 60), "rain": rng.uniform(80, 250)}.get(street.weather, 600)
    haze = {"night": 30.0, "dusk": 150.0}.get(street.weather, float(rng.uniform(170, 220)))
    kept = np.exp(-canvas.depth_m / np.float32(seen_m))
    if street.weather != "fog":  # the sky has its own colours
        kept[canvas.labels == SKY] = 1
    return np.asarray(haze + (light - haze) * kept[:, :, np.newaxis], np.float32)


def at_night(
    light: NDArray[np.float32], canvas: Canvas, street: Street, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Darken all but lamps and lit windows, add our headlights and the glow of the lamps."""
    shining = light.max(axis=2) > 236
    ambient = rng.uniform(0.25, 0.45) if street.weather == "night" else rng.uniform(0.45, 0.7)
    beam = rng.uniform(0.3, 0.8) * np.exp(-canvas.depth_m / 14)
    warm = np.array((1.05, 0.97, 0.88) if street.weather == "dusk" else (0.92, 0.95, 1.08))
    gain = (ambient + beam)[:, :, np.newaxis] * warm
    gain[shining] = 1
    glow = cv2.GaussianBlur(np.where(shining[:, :, np.newaxis], light, 0), (0, 0), 7)
    return np.asarray(light * gain + 0.8 * glow, np.float32)


def in_rain(light: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Add streaks of falling drops, and drops on the glass that blur what is behind."""
    drops = (rng.random((HEIGHT, WIDTH), dtype=np.float32) > 0.997).astype(np.float32)
    length = int(rng.integers(7, 17))
    streak = np.zeros((length, length), np.float32)
    cv2.line(streak, (int(rng.integers(length)), 0), (length // 2, length - 1), 1, 1)
    fallen = cv2.filter2D(drops, -1, streak) * np.float32(rng.uniform(15, 45))
    light = np.asarray(light + fallen[:, :, np.newaxis], np.float32)
    glass = np.zeros((HEIGHT, WIDTH), np.float32)
    for _ in range(rng.integers(0, 25)):
        spot = (int(rng.integers(WIDTH)), int(rng.integers(HEIGHT)))
        cv2.circle(glass, spot, int(rng.integers(2, 8)), 1, -1)
    wet = cv2.GaussianBlur(glass, (0, 0), 1)[:, :, np.newaxis]
    return np.asarray(light * (1 - wet) + cv2.GaussianBlur(light, (0, 0), 5) * wet, np.float32)


def against_the_sun(
    light: NDArray[np.float32], street: Street, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Add the veil of a low sun."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    across, up = WIDTH * (0.5 + 0.5 * street.sun), street.horizon_px * rng.uniform(0.2, 0.9)
    distance = np.hypot(columns - across, rows - up)
    veil = np.exp(-distance / rng.uniform(40, 110)) * rng.uniform(60, 190)
    return np.asarray(light + veil[:, :, np.newaxis] * np.array((1, 0.93, 0.8)), np.float32)


def by_camera(light: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blur, vignette, expose, balance and add sensor noise."""
    sharp = np.asarray(cv2.GaussianBlur(light, (0, 0), rng.uniform(0.35, 0.9)), np.float32)
    across, down = np.linspace(-1, 1, WIDTH), np.linspace(-1, 1, HEIGHT)
    corner = across[np.newaxis] ** 2 + down[:, np.newaxis] ** 2
    vignette = (1 - rng.uniform(0, 0.15) * corner)[:, :, np.newaxis].astype(np.float32)
    balance = (rng.uniform(0.75, 1.25) * rng.uniform(0.93, 1.07, 3)).astype(np.float32)
    exposed = np.clip(sharp * vignette * balance, 0, 255).astype(np.uint8)
    curve = (255 * (np.arange(256) / 255) ** rng.uniform(0.8, 1.25)).astype(np.float32)
    stain = noise_patch(HEIGHT, WIDTH, rng)[:, :, np.newaxis] * np.float32(rng.uniform(0, 4))
    grain = np.float32(rng.uniform(1, 6)) * grain_patch(rng)
    return np.asarray(np.clip(curve[exposed] + stain + grain, 0, 255), np.uint8)


@functools.cache
def grain_tile() -> NDArray[np.float32]:
    """White noise float32[512, 1024, 3] of deviation 1: a sensor's."""
    return np.random.default_rng(1).standard_normal((512, 1024, 3), dtype=np.float32)


def grain_patch(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a random piece of the sensor's noise, as large as the picture."""
    down, across = rng.integers(0, 512 - HEIGHT), rng.integers(0, 1024 - WIDTH)
    return grain_tile()[down : down + HEIGHT, across : across + WIDTH]
