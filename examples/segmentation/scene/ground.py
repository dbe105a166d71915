"""Sky and ground: everything that is a function of the pixel's place in the world."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .canvas import HEIGHT, ROAD, SIDEWALK, VEGETATION, WIDTH, Canvas
from .noise import noise_at
from .street import Street


def paint_sky(canvas: Canvas, street: Street, rng: np.random.Generator) -> None:
    """Paint a gradient with clouds that flatten towards the horizon."""
    tops = {"clear": (95, 145, 215), "dusk": (110, 105, 150), "night": (14, 16, 30)}
    lows = {"clear": (190, 210, 235), "dusk": (245, 180, 130), "night": (40, 38, 48)}
    gray = float(rng.uniform(140, 215))
    top = np.array(tops.get(street.weather, (gray - 15, gray - 8, gray)), np.float32)
    low = np.array(lows.get(street.weather, (gray + 20,) * 3), np.float32)
    last = min(HEIGHT, math.ceil(street.horizon_px + 1))
    rows, columns = np.mgrid[0:last, 0:WIDTH].astype(np.float32)
    share = np.clip(rows / max(1.0, street.horizon_px), 0, 1)[:, :, np.newaxis]
    sky = top * (1 - share) + low * share
    height = np.maximum(street.horizon_px - rows, 4)
    clouds = noise_at((columns - WIDTH / 2) * 90 / height, 9000 / height, rng)
    cover = np.clip(clouds - rng.uniform(-0.5, 1.2), 0, 1.2)[:, :, np.newaxis] / 1.2
    white = np.float32(60 if street.weather == "night" else 245)
    canvas.picture[:last] = np.clip(sky + (white - sky) * cover * 0.8, 0, 255).astype(np.uint8)


def paint_ground(canvas: Canvas, street: Street, rng: np.random.Generator) -> None:
    """Paint road, pavements and what lies beside them: looked up in metres for every pixel."""
    first = math.ceil(street.horizon_px + 1)
    rows, columns = np.mgrid[first:HEIGHT, 0:WIDTH].astype(np.float32)
    z = street.focal_px * street.camera_m / (rows - street.horizon_px)
    x = (columns - street.vanishing_px) * z / street.focal_px - street.bend * z * z
    on_road = (x > street.left_m) & (x < street.right_m)
    beside = (x > street.left_m - street.pavement_m[0]) & (
        x < street.right_m + street.pavement_m[1]
    )
    crossing = np.zeros_like(on_road)
    if street.crossing_m:
        crossing = (z > street.crossing_m[0]) & (z < street.crossing_m[1])
    lawn = ~beside & ~crossing & (rng.random() < 0.5)
    road = on_road | crossing

    asphalt, slabs = rng.uniform(60, 120), rng.uniform(105, 175)
    tint = rng.uniform(-12, 12, 3).astype(np.float32)
    color = np.empty((*z.shape, 3), np.float32)
    grain = noise_at(x * 90, z * 90, rng) * np.clip(12 / z, 0.1, 1) + noise_at(x * 9, z * 9, rng)
    slab = rng.uniform(0.4, 1.2)
    joints = ((np.mod(x, slab) < 0.05) | (np.mod(z, slab) < 0.05)) & (z < 25)
    color[:] = (slabs + 7 * grain - np.float32(25) * joints)[:, :, np.newaxis] + tint
    color[lawn] = (np.array(street.green) + 12 * grain[lawn][:, np.newaxis]).astype(np.float32)
    color[road] = (asphalt + 8 * grain[road])[:, np.newaxis] + tint * 0.3
    kerb = ~crossing & ((np.abs(x - street.left_m) < 0.12) | (np.abs(x - street.right_m) < 0.12))
    color[kerb] = slabs + 30
    color[markings(street, x, z, rng)] = rng.uniform(170, 230)
    if street.weather == "clear":
        shade = noise_at(x * 16, z * 16, rng) > rng.uniform(0.3, 1.8)  # of trees
        edge = street.left_m + 2 if street.sun < 0 else street.right_m - 2
        shade |= (x < edge) if street.sun < -0.4 else (x > edge) & (street.sun > 0.4)
        color[shade] *= 0.62
    if street.weather in {"rain", "night"}:  # wet: the sky's light in long streaks
        color[road] += 25 * np.clip(noise_at(columns * 3, rows * 0.2, rng)[road], 0, 2)[:, None]
    canvas.picture[first:] = np.clip(color, 0, 255).astype(np.uint8)
    canvas.labels[first:] = np.where(road, ROAD, np.where(lawn, VEGETATION, SIDEWALK))
    canvas.depth_m[first:] = z


def markings(
    street: Street, x: NDArray[Any], z: NDArray[Any], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return where lane lines and zebra crossings are."""
    marked = np.zeros(x.shape, bool)
    lanes = max(1, round((street.right_m - street.left_m) / 3.3))
    for line in np.linspace(street.left_m, street.right_m, lanes + 1)[1:-1]:
        dashed = np.mod(z, 6) < rng.choice([3, 6], p=[0.8, 0.2])
        marked |= (np.abs(x - line) < 0.09) & dashed & (z < 60)
    if street.crossing_m:
        begin, end = street.crossing_m
        marked &= (z < begin) | (z > end)
        zebra = (z > begin - 3.2) & (z < begin - 0.6) & (np.mod(x, 1.1) < 0.55)
        marked |= zebra & (x > street.left_m) & (x < street.right_m)
    return marked
