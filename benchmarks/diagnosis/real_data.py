"""The files that the scripts in `real` read, made once: pictures, speech, tables, tokens."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import wave
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from images import make_folder

DONE = ".complete"
_WORDS = 4000


def make_data(root: Path) -> Path:
    """Make below `root` what is not there yet, and return it."""
    for make in (_images, _masks, _instances, _speech, _table, _tokens, _texts, _shards):
        folder = root / make.__name__.removeprefix("_")
        if not (folder / DONE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(folder)
            (folder / DONE).touch()
    return root


def _images(folder: Path) -> None:
    """Two splits of classes: `train/class_00/000000.jpg`."""
    make_folder(folder / "train", 240)
    make_folder(folder / "val", 80)


def _masks(folder: Path) -> None:
    """Scenes of 320x240 and the class of each pixel, as .npy files."""
    random = np.random.default_rng(1)
    for number in range(60):
        grid = random.integers(0, 12, (12, 16), dtype=np.uint8)
        mask = np.kron(grid, np.ones((20, 20), np.uint8))
        image = (mask[..., None] * 20 + random.integers(0, 15, (240, 320, 3))).astype(np.uint8)
        np.save(folder / f"{number:03d}_image.npy", image)
        np.save(folder / f"{number:03d}_mask.npy", mask)


def _instances(folder: Path) -> None:
    """Boxes of objects by picture, as COCO's annotations have them."""
    random = np.random.default_rng(2)
    images, annotations = [], []
    for number in range(400):
        images.append({"id": number, "height": 192, "width": 256})
        for _ in range(int(random.integers(14, 26))):
            left, top = (int(value) for value in random.integers(0, (200, 150)))
            width, height = (int(value) for value in random.integers(8, (56, 42)))
            annotations.append(
                {
                    "image_id": number,
                    "bbox": [left, top, width, height],
                    "category_id": int(random.integers(1, 20)),
                    "iscrowd": 0,
                }
            )
    content = {"images": images, "annotations": annotations}
    (folder / "instances.json").write_text(json.dumps(content), encoding="utf-8")


def _speech(folder: Path) -> None:
    """Utterances of one to three seconds at 16 kHz, and a manifest of their words."""
    random = np.random.default_rng(3)
    rows = []
    for number in range(160):
        seconds = float(random.uniform(1, 3))
        times = np.arange(int(16_000 * seconds)) / 16_000
        signal = np.sin(2 * np.pi * random.uniform(90, 250) * times) * 9000
        signal += random.normal(0, 800, len(times))
        with wave.open(str(folder / f"{number:04d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(signal.astype("<i2").tobytes())
        label = random.integers(1, 28, int(seconds * 8)).tolist()
        rows.append({"audio": f"{number:04d}.wav", "seconds": seconds, "label": label})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "manifest.jsonl").write_text(lines, encoding="utf-8")


def _table(folder: Path) -> None:
    """Customers: numbers, names of categories and whether they left."""
    random = np.random.default_rng(4)
    count = 30_000
    columns = {f"amount_{i}": random.normal(size=count) for i in range(12)}
    columns |= {f"visits_{i}": random.integers(0, 50, count) for i in range(6)}
    columns |= {f"region_{i}": random.choice(list("abcdef"), count) for i in range(4)}
    columns["left"] = random.integers(0, 2, count)
    pd.DataFrame(columns).to_csv(folder / "customers.csv", index=False)


def _tokens(folder: Path) -> None:
    """Token ids for a language model, in two files of uint16."""
    random = np.random.default_rng(5)
    for split, count in (("train", 2_000_000), ("val", 200_000)):
        (random.zipf(1.3, count) % 512).astype(np.uint16).tofile(folder / f"{split}.bin")


def _texts(folder: Path) -> None:
    """Reviews of 40 to 160 words, and their ratings."""
    random = np.random.default_rng(6)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(random.choice(letters, random.integers(2, 11))) for _ in range(_WORDS)]
    with (folder / "reviews.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(3000):
            chosen = random.zipf(1.4, int(random.integers(40, 160))) % _WORDS
            text = " ".join(words[i] for i in chosen)
            file.write(json.dumps({"text": text, "rating": int(random.integers(0, 5))}) + "\n")


def _shards(folder: Path) -> None:
    """The training pictures in tar files: all in one, and shared out to four."""
    pictures = sorted((folder.parent / "images" / "train").glob("*/*.jpg"))
    _write_shard(folder / "all-000000.tar", pictures)
    for number in range(4):
        _write_shard(folder / f"part-{number:06d}.tar", pictures[number::4])


def _write_shard(path: Path, pictures: list[Path]) -> None:
    with tarfile.open(path, "w") as tar:
        for picture in pictures:
            label = str(int(picture.parent.name.removeprefix("class_"))).encode()
            for suffix, content in (("jpg", picture.read_bytes()), ("cls", label)):
                member = tarfile.TarInfo(f"{picture.stem}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    make_data(Path(sys.argv[1]))
