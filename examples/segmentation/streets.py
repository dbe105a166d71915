"""Render street scenes with exact masks, in Cityscapes' folder layout.

    python examples/segmentation/streets.py /tmp/streets --train 500 --val 100

A camera of known height looks along a street: road, pavements, buildings, trees, parked and moving
cars, people, lamp posts and signs are placed in metres, projected, and painted from far to near
into the picture, the mask (Cityscapes' label ids) and a depth map. Then come weather (fog, rain,
night, low sun) and the camera's own faults. Every scene is a function of its seed alone, so the
files are the same on any number of cores.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
from scene.render import render  # type: ignore[import-not-found]  # the folder beside this file

CITIES = ("ashford", "birchwood", "coldbrook", "dunmore", "eastvale", "fairhaven")


def write_scene(root: Path, seed: int, image_format: str, task: tuple[str, int]) -> None:
    """Render one scene and write its two files."""
    split, number = task
    picture, labels = render([seed, *split.encode(), number])
    city = CITIES[number % len(CITIES)]
    name = f"{city}_{number // len(CITIES):06d}_000019"
    image = root / "leftImg8bit" / split / city / f"{name}_leftImg8bit.{image_format}"
    mask = root / "gtFine" / split / city / f"{name}_gtFine_labelIds.png"
    for path, pixels in ((image, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)), (mask, labels)):
        path.parent.mkdir(parents=True, exist_ok=True)
        quality = [cv2.IMWRITE_JPEG_QUALITY, 92] if path.suffix == ".jpg" else []
        _, encoded = cv2.imencode(path.suffix, pixels, quality)
        path.write_bytes(encoded.tobytes())


def main() -> None:
    """Parse the command line and render in parallel."""
    parser = argparse.ArgumentParser(description="Render street scenes with exact masks.")
    parser.add_argument("root", type=Path, help="folder to write to")
    parser.add_argument("--train", type=int, default=500, help="scenes of the training split")
    parser.add_argument("--val", type=int, default=100, help="scenes held out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image-format", choices=("png", "jpg"), default="png")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()

    begin = time.perf_counter()
    tasks = [("train", n) for n in range(args.train)] + [("val", n) for n in range(args.val)]
    write = functools.partial(write_scene, args.root, args.seed, args.image_format)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(args.workers, context, cv2.setNumThreads, (0,)) as pool:
        for done, _ in enumerate(pool.map(write, tasks, chunksize=8), start=1):
            if done % 200 == 0 or done == len(tasks):
                rate = done / (time.perf_counter() - begin)
                print(f"{done} of {len(tasks)} scenes, {rate:.0f} a second", flush=True)


if __name__ == "__main__":
    main()
