"""Small source trees with real images in them, for the tests of packing."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
from PIL import Image


def jpeg(seed: int = 0, *, width: int = 48, height: int = 32) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    return encoded(".jpg", cv2.resize(coarse, (width, height)))


def png_mask(seed: int = 0, *, width: int = 48, height: int = 32) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 9, (4, 6), dtype=np.uint8)
    return encoded(".png", cv2.resize(coarse, (width, height), interpolation=cv2.INTER_NEAREST))


def png_colour(seed: int = 0) -> bytes:
    return encoded(
        ".png", np.random.default_rng(seed).integers(0, 255, (16, 24, 3), dtype=np.uint8)
    )


def png_16bit() -> bytes:
    return encoded(".png", np.full((16, 24), 40_000, dtype=np.uint16))


def jpeg_cmyk() -> bytes:
    sink = io.BytesIO()
    Image.new("CMYK", (24, 16), (10, 20, 30, 40)).save(sink, "JPEG")
    return sink.getvalue()


def encoded(extension: str, image: np.ndarray) -> bytes:
    ready, data = cv2.imencode(extension, image)
    assert ready
    return data.tobytes()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return root


def class_folders(root: Path, *, each: int = 5, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    files = {
        f"{name}/{name}_{number:03d}.JPEG": jpeg(seed=number + 100 * place)
        for place, name in enumerate(classes)
        for number in range(each)
    }
    return write(root, files)


def cityscapes(root: Path, *, each: int = 3, image_extension: str = "png") -> Path:
    files = {}
    for split in ("train", "val"):
        for number in range(each):
            stem = f"{split}/aachen/aachen_{number:06d}_000019"
            image = png_colour(number) if image_extension == "png" else jpeg(number)
            files[f"leftImg8bit/{stem}_leftImg8bit.{image_extension}"] = image
            files[f"gtFine/{stem}_gtFine_labelIds.png"] = png_mask(number, width=24, height=16)
            files[f"gtFine/{stem}_gtFine_polygons.json"] = b"{}"
    return write(root, files)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
