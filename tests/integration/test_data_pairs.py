"""Orientations, palettes and dotted names, as `headrace data` tells them and as they are read."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_verbs import run_data_verb
from headrace import ShardDataset
from headrace.data.image_files import masks_among, read_orientation
from headrace.data.shards.members import SampleLocation
from headrace.data.shards.shard_index import open_index, read_member
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source
from headrace.data.storage import open_store
from headrace.transforms import CenterCrop, OnMembers
from image_trees import contents, jpeg, png_mask, write


def turned(width: int, height: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """Return a picture with the EXIF orientation of a camera held upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    sink = io.BytesIO()
    Image.new(mode, (width, height), 100).save(sink, kind, exif=exif.tobytes())
    return sink.getvalue()


def test_all_files_keep_their_orientation_and_it_is_told(tmp_path):
    files = {
        f"cat/{size}_{kind}_{mode}.{kind[:3].lower().replace('jpe', 'jpg')}": turned(
            3 * size, 2 * size, kind, mode
        )
        for size in (10, 40)
        for kind, mode in (("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "L"))
    }
    write(tmp_path / "src", files | {"cat/plain.jpg": jpeg()})
    told = run_data_verb(tmp_path, "pack", "src", "dst", "--resize-short", "30")
    assert "orientation  8 files" in told.stdout
    index = open_index(str(tmp_path / "dst"))
    store = open_store(index.data_url)
    for sample in range(index.num_samples):
        location = index.locate(sample)
        image = next(member for member in location.members if member.extension != "cls")
        orientation = read_orientation(read_member(store, index, location, image))
        assert orientation == (1 if location.key == "cat/plain" else 6), location.key
    told = run_data_verb(tmp_path, "index", "src", "--json")
    assert json.loads(told.stdout)["num_oriented"] == 8
    tar(tmp_path / "tars/x.tar", ["a.jpg", "b.jpg"], turned(60, 40))
    assert "orientation  2 files" in run_data_verb(tmp_path, "index", "tars").stdout
    plain = write(tmp_path / "plain", {"cat/1.jpg": jpeg()})
    assert "orientation" not in run_data_verb(tmp_path, "index", plain).stdout
    assert b"num_oriented" not in (plain / "manifest.json").read_bytes()


PAIRS = ["--image-glob", "images/*.*", "--mask-glob", "masks/*.*"]


def test_pairs_that_differ_by_orientation_are_bad(tmp_path):
    files = {"images/0.jpg": turned(60, 40), "masks/0.png": png_mask(width=40, height=60)}
    files |= {"images/1.jpg": turned(60, 40), "masks/1.png": png_mask(width=60, height=40)}
    write(tmp_path / "src", files)
    (tmp_path / "t.csv").write_text(
        "image,mask\nsrc/images/0.jpg,src/masks/0.png\nsrc/images/1.jpg,src/masks/1.png\n"
    )
    for source, options in (("src", PAIRS), ("t.csv", [])):
        refused = run_data_verb(tmp_path, "pack", source, f"{source}-dst", *options)
        assert refused.returncode == 1
        assert "images/0.jpg: The image is 60x40 pixels and its mask 40x60" in refused.stderr
        assert "EXIF orientation" in refused.stderr
    assert "EXIF orientation" in run_data_verb(tmp_path, "index", "src", *PAIRS).stderr
    left = run_data_verb(tmp_path, "index", "src", *PAIRS, "--max-bad", "1", "--json")
    assert json.loads(left.stdout)["num_samples"] == 1


def test_pairs_in_tars_that_differ_by_orientation_are_faults(tmp_path):
    (tmp_path / "src").mkdir()
    with tarfile.open(tmp_path / "src" / "0.tar", "w") as archive:
        for name, data in {
            "0.jpg": turned(60, 40), "0.png": png_mask(width=40, height=60),
            "1.jpg": turned(60, 40), "1.png": png_mask(width=60, height=40),
            "2.jpg": turned(60, 40), "2.x.jpg": turned(40, 60),  # no mask
        }.items():  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    refused = run_data_verb(tmp_path, "index", "src")
    assert refused.returncode == 1
    assert "'0': The image is 60x40 pixels and its mask 40x60" in refused.stderr
    left = run_data_verb(tmp_path, "index", "src", "--max-bad", "1", "--json")
    assert json.loads(left.stdout)["num_samples"] == 2


def test_of_an_unreadable_folder_the_partners_are_left_out_too(tmp_path):
    files = {f"{side}/{name}": png_mask() for side in ("images", "masks") for name in ("a/0.png",)}
    write(tmp_path / "src", files | {"masks/b/1.png": png_mask(), "masks/b/2.png": png_mask()})
    (tmp_path / "src" / "images" / "b").symlink_to(tmp_path / "unmounted")
    words = ["--image-glob", "images/**/*.png", "--mask-glob", "masks/**/*.png"]
    refused = run_data_verb(tmp_path, "pack", "src", "dst", *words)
    assert refused.returncode == 1
    assert "images/b" in refused.stderr
    left = run_data_verb(tmp_path, "pack", "src", "dst", *words, "--max-bad", "1", "--json")
    assert json.loads(left.stdout)["num_samples"] == 1


LABELS = np.random.default_rng(0).integers(0, 21, (40, 60)).astype(np.uint8)


def palette_mask(kind: str) -> bytes:
    image = Image.frombytes("P", (60, 40), LABELS.tobytes())
    image.putpalette(np.random.default_rng(1).integers(0, 255, 768, np.uint8).tobytes())
    sink = io.BytesIO()
    image.save(sink, kind)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("image", "mask", "member"),
    [("jpg", "png", "png"), ("png", "png", "png"), ("tif", "gif", "gif"), ("jpg", "bmp", "bmp")],
)
def test_palette_masks_are_labels_however_they_come(tmp_path, image, mask, member):
    photo = Image.fromarray(np.random.default_rng(2).integers(0, 255, (40, 60, 3), np.uint8))
    sink = io.BytesIO()
    photo.save(sink, {"jpg": "JPEG", "tif": "TIFF"}.get(image, image))
    files = {f"images/1.{image}": sink.getvalue(), f"masks/1.{mask}": palette_mask(mask)}
    write(tmp_path / "src", files)
    run_data_verb(tmp_path, "index", "src", *PAIRS)
    run_data_verb(tmp_path, "pack", "src", "small", *PAIRS, "--resize-short", "20")
    named = f"image.{image}" if image == mask else image
    for folder in ("src", "small"):
        sample = ShardDataset(str(tmp_path / folder))[0]
        assert sample[named].shape[2] == 3
        labels = sample[member][:, :, 0]
        assert labels.max() <= 20
        if folder == "src":
            np.testing.assert_array_equal(labels, LABELS)
    assert sample[member].shape == (20, 30, 1)


MIXED = [
    [("jpg", "png"), ("png", "tif")],
    [("jpg", "png"), ("png", "tif"), ("tif", "png")],
    [("png", "png"), ("png", "bmp"), ("bmp", "gif")],
    [("jpg", "png"), ("png", "jpg")],
]


@pytest.mark.parametrize("kinds", MIXED)
def test_each_member_of_pairs_of_several_formats_is_the_file_that_it_names(tmp_path, kinds):
    files = {}
    for number, formats in enumerate(kinds):
        for place, (side, kind) in enumerate(zip(("images", "masks"), formats, strict=True)):
            sink, value = io.BytesIO(), 20 * number + place + 1
            mode = "L" if side == "masks" else "RGB"
            pixels = Image.new(mode, (6, 4), value if mode == "L" else (value,) * 3)
            pixels.save(sink, {"jpg": "JPEG", "tif": "TIFF"}.get(kind, kind))
            files[f"{side}/{number}.{kind}"] = sink.getvalue()
    write(tmp_path / "src", files)
    assert run_data_verb(tmp_path, "pack", "src", "dst", *PAIRS).returncode == 0
    assert run_data_verb(tmp_path, "index", "src", *PAIRS).returncode == 0
    assert run_data_verb(tmp_path, "lint", "src").returncode == 0
    names: dict[str, set[str]] = {}
    for folder in ("src", "dst"):
        index = open_index(str(tmp_path / folder))
        store = open_store(index.data_url)
        for location in (index.locate(sample) for sample in range(index.num_samples)):
            for member in location.members:
                side = "images" if member.extension not in masks_of(location) else "masks"
                path = f"{side}/{location.key}.{member.extension.rpartition('.')[2]}"
                assert read_member(store, index, location, member) == files[path]
                names.setdefault(side, set()).add(member.extension)
    assert not names["images"] & names["masks"]


def masks_of(location: SampleLocation) -> frozenset[str]:
    return masks_among(tuple(member.extension for member in location.members))


def test_a_packed_palette_mask_is_labels_and_an_images_palette_colours(tmp_path):
    write(
        tmp_path / "src",
        {"images/1.jpg": jpeg(width=60, height=40), "masks/1.png": palette_mask("PNG")},
    )
    write(tmp_path / "icons", {"1.png": palette_mask("PNG")})
    run_data_verb(tmp_path, "pack", "src", "dst", *PAIRS)
    run_data_verb(tmp_path, "index", "icons")
    np.testing.assert_array_equal(ShardDataset(str(tmp_path / "dst"))[0]["png"][:, :, 0], LABELS)
    assert ShardDataset(str(tmp_path / "icons"))[0]["png"].shape == (40, 60, 3)
    # A transform that takes files of decoded datasets still gets the mask's labels.
    crop = OnMembers("png", CenterCrop(40, resize=40))
    cropped = ShardDataset(str(tmp_path / "dst"), transform=crop)[0]["png"]
    np.testing.assert_array_equal(cropped[:, :, 0], LABELS[:, 10:50])


def tar(path: Path, names: list[str], data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(
    ("member", "is_mask"), [("png", True), ("seg.png", True), ("x.png", False)]
)
def test_palette_masks_in_tars_are_known_by_their_names(tmp_path, member, is_mask):
    write(
        tmp_path / "parts", {"1.jpg": jpeg(width=60, height=40), f"1.{member}": palette_mask("PNG")}
    )
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name in ("1.jpg", f"1.{member}"):
            archive.add(tmp_path / "parts" / name, name)
    write(tmp_path / "src", {"x.tar": (tmp_path / "x.tar").read_bytes()})
    run_data_verb(tmp_path, "index", "src")
    found = ShardDataset(str(tmp_path / "src"))[0][member]
    assert found.shape[2] == (1 if is_mask else 3)
    assert np.array_equal(found[:, :, 0], LABELS) == is_mask


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.b.jpg", "a.c.jpg"], "members .b.jpg and .c.jpg (2 names end in .jpg)"),
        (["a.0001.jpg", "b.0002.jpg", "b.3.jpg"], "(3 names end in .jpg)"),
        (["a.jpg", "b.jpg"], ""),
        (["a.jpg", "a.mask.png", "a.image.png"], ""),
    ],
)
def test_names_with_dots_that_share_samples_are_warned_of(tmp_path, names, words):
    tar(tmp_path / "src/x.tar", names, jpeg())
    told = run_data_verb(tmp_path, "index", "src", "--json")
    assert json.loads(told.stdout)["num_samples"] == len({name[0] for name in names})
    assert words in told.stderr
    assert ("warning:" in told.stderr) == bool(words)


@pytest.mark.parametrize(
    ("names", "too_few"),
    [
        (["a.jpg", "a.cls", "b.jpg"], 1),
        (["x/a.jpg", "x/b.jpg", "y/a.cls", "y/b.cls"], 4),
        (["a.jpg", "a.seg.png", "b.jpg"], 1),
        (["a.jpg", "a.cls", "b.png", "b.cls"], 0),
        (["a.jpg", "a.txt", "b.jpg", "b.txt"], 0),
    ],
)
def test_members_that_samples_lack_are_warned_of(tmp_path, names, too_few):
    tar(tmp_path / "src/x.tar", names, jpeg())
    warnings = run_data_verb(tmp_path, "index", "src").stderr
    assert (f"at least {too_few} too few for each to have all" in warnings) == bool(too_few)
    assert ("warning:" in warnings) == bool(too_few)


def test_a_bucket_has_the_same_rule_as_a_folder(tmp_path, s3_url):
    files = {f"{name}/{n}.JPG": jpeg(n) for name in ("cat", "dog") for n in range(2)}
    files |= {"cat/.ipynb_checkpoints/0-checkpoint.jpg": jpeg(), "@eaDir/0.jpg": jpeg()}
    source = write(tmp_path / "src", files | {"dog/._0.jpg": b"?", "README": b"?"})
    for name, data in contents(source).items():
        open_store(s3_url).put(name, data)
    here, there = (list_source(url, SourceOptions()) for url in (str(source), s3_url))
    assert there.images.paths.equals(here.images.paths)
    assert (there.classes, there.labels.tolist()) == (here.classes, here.labels.tolist())
    assert (here.source.num_system, here.source.num_ignored) == (3, 4)
    assert (there.source.num_system, there.source.num_ignored) == (3, 4)
    assert there.source.system == here.source.system


def test_what_is_hidden_is_told_with_count_and_example(tmp_path):
    files = {"cat/1.jpg": jpeg(), "cat/.ipynb_checkpoints/1-checkpoint.jpg": jpeg(), "x.txt": b""}
    write(tmp_path / "src", files | {"@eaDir/1.jpg/THUMB.jpg": jpeg()})
    told = run_data_verb(tmp_path, "index", "src").stdout
    assert "classes      1 (cat)" in told
    assert "ignored      1 of no sample, such as x.txt" in told
    assert "ignored      2 hidden or system files, such as @eaDir/1.jpg/THUMB.jpg, cat/.ipy" in told
