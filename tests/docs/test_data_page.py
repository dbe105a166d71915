"""What docs/data.md says can be typed, does what it says."""

from __future__ import annotations

import random
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import typer.main

from headrace import DataLoader, ShardDataset
from headrace.cli.main import build_app
from headrace.core import env
from headrace.core.errors import DatasetError
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.shards.sources import tables
from headrace.data.shards.sources.source_kinds import SourceOptions
from headrace.transforms import OnMembers
from image_trees import class_folders, jpeg, png_mask, write

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text()


def snippets() -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in found]


def test_a_transform_of_anyone_s_plugs_in(tmp_path: Path):
    source = class_folders(tmp_path / "photos", each=8)
    pack(str(source), str(tmp_path / "packed"), PackOptions())
    names: dict[str, Any] = {"__name__": "__main__"}  # such travels to workers by value
    code = snippets()[1].replace("s3://bucket/photos", str(tmp_path / "packed"))
    exec(code, names)  # noqa: S102 - the page's own words
    batches = list(DataLoader(names["dataset"], 8, num_workers=0))
    assert [tuple(batch["jpg"].shape) for batch in batches] == [(8, 64, 64, 3)] * 2


class Pipeline:
    """As albumentations has them: generators of its own, image and mask by name."""

    def __init__(self) -> None:
        self.generator = random.Random()

    def set_random_seed(self, seed: int) -> None:
        self.generator.seed(seed)

    def __call__(self, *, image: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        turns = self.generator.randrange(4)
        return {"image": np.rot90(image, turns).copy(), "mask": np.rot90(mask, turns).copy()}


def test_a_pipeline_with_generators_of_its_own_makes_the_same_batches_anywhere(tmp_path: Path):
    square = {"width": 32, "height": 32}
    files = {f"img/{n}.jpg": jpeg(n, **square) for n in range(16)}
    files |= {f"ann/{n}.png": png_mask(n, **square) for n in range(16)}
    source = write(tmp_path / "src", files)
    globs = SourceOptions(image_glob="img/*.jpg", mask_glob="ann/*.png")
    pack(str(source), str(tmp_path / "packed"), PackOptions(source=globs))
    names: dict[str, Any] = {"__name__": "__main__"}  # such travels to workers by value
    exec(snippets()[2], names)  # noqa: S102 - the page's own words
    turned = OnMembers(("jpg", "png"), names["Albumented"](Pipeline()))
    dataset = ShardDataset(str(tmp_path / "packed"), transform=turned)
    inline, made = (
        [batch["png"].numpy() for batch in DataLoader(dataset, 4, seed=1, num_workers=count)]
        for count in (0, 2)
    )
    np.testing.assert_array_equal(inline, made)
    plain = ShardDataset(str(tmp_path / "packed"))
    untouched = [batch["png"].numpy() for batch in DataLoader(plain, 4, num_workers=0)]
    assert any((one != other).any() for one, other in zip(inline, untouched, strict=True))


def test_images_within_parquet_files_are_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for part in range(2):
        images = [{"bytes": jpeg(2 * part + n), "path": "a.jpg"} for n in range(2)]
        rows = pa.table({"image": images, "label": pa.array([part, 1])})
        pyarrow.parquet.write_table(rows, f"data/train-0000{part}-of-00002.parquet")
    with pytest.raises(DatasetError, match=r"'image' holds the files themselves.*docs/data\.md"):
        pack("data", "packed", PackOptions())
    exec(snippets()[0], {})  # noqa: S102 - the page's own words
    pack("photos.csv", "packed", PackOptions(keep_order=True))
    dataset = ShardDataset("packed")
    assert [int(dataset[number]["cls"]) for number in range(4)] == [0, 1, 1, 1]


def test_every_verb_and_flag_that_the_page_names_exists():
    group = typer.main.get_command(build_app()).commands["data"]
    verbs = set(re.findall(r"headrace data (\w+)", PAGE))
    assert verbs == set(group.commands)
    flags = {flag for verb in group.commands.values() for each in verb.params for flag in each.opts}
    assert set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) <= flags | {"--help"}


def test_every_column_of_a_table_and_every_variable_is_documented():
    groups = (tables._IMAGE_COLUMNS, tables._MASK_COLUMNS, tables._LABEL_COLUMNS)
    assert all(f"`{name}`" in PAGE for names in groups for name in (*names, "key"))
    declared = {each.name for each in vars(env).values() if isinstance(each, env.Variable)}
    named = set(re.findall(r"`((?:AWS|GOOGLE|STORAGE|AZURE|HEADRACE)_[A-Z_0-9]+)`", PAGE))
    unread = {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
    }
    assert named - declared == unread  # the client reads these, or a group of ours holds them
