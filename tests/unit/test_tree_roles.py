"""Trees whose names say that they are no class folders: splits, masks; tars of several splits."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from headrace import ShardDataset
from headrace.core.errors import DatasetError
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source
from image_trees import jpeg, png_mask, write


def tar_of(name: str) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(jpeg())
        archive.addfile(info, io.BytesIO(jpeg()))
    return sink.getvalue()


def classes_of(source: Path) -> tuple[str, ...]:
    return list_source(str(source), SourceOptions()).classes


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("train", "val", "extra"), "look like splits"),
        (("train_images", "test_images"), "look like splits"),
        (("train2017", "val2017", "unlabeled2017"), "look like splits"),
        (("Training_Set", "Test_Set"), "look like splits"),
        (("trainset", "valset"), "look like splits"),
        (("train", "train_masks", "test"), "look like splits"),
        (("train", "train_masks"), "look like images and their masks"),
        (("images", "masks", "overlays"), "look like images and their masks"),
        (("train-images", "train-labels"), "look like images and their masks"),
    ],
)
def test_folders_that_say_their_role_are_no_classes_beside_others_either(tmp_path, folders, words):
    source = write(tmp_path / "src", {f"{name}/1.jpg": jpeg() for name in folders})
    with pytest.raises(DatasetError, match=words):
        list_source(str(source), SourceOptions())
    named = SourceOptions(classes=tuple(sorted(folders)))
    assert list_source(str(source), named).classes == tuple(sorted(folders))


@pytest.mark.parametrize(
    "folders",
    [
        ("bus", "train"), ("mask", "no_mask"), ("with_mask", "without_mask"), ("test_1", "test_2"),
        ("label", "tag"), ("training_shoe", "test_tube"), ("evaluate", "trainer", "value"),
    ],
)  # fmt: skip
def test_classes_that_sound_alike_stay_classes(tmp_path, folders):
    source = write(tmp_path / "src", {f"{name}/1.jpg": jpeg() for name in folders})
    assert classes_of(source) == tuple(sorted(folders))


@pytest.mark.parametrize(
    "mask", ["a_mask.png", "a-mask.jpg", "a.mask.png", "a_seg.png", "a Mask.png", "a_gt.tif"]
)
@pytest.mark.parametrize("folder", ["", "cat/"])
def test_masks_beside_their_images_are_no_samples_of_their_own(tmp_path, mask, folder):
    files = {f"{folder}a.jpg": jpeg(), f"{folder}b.jpg": jpeg(), f"{folder}{mask}": png_mask()}
    source = write(tmp_path / "src", files)
    with pytest.raises(DatasetError, match=r"1 images are named as the masks of others"):
        list_source(str(source), SourceOptions())
    (source / f"{folder}a.jpg").unlink()
    assert len(list_source(str(source), SourceOptions())) == 2


def test_what_the_message_about_masks_proposes_pairs_them(tmp_path):
    files = {f"x/{name}": jpeg() for name in ("a.jpg", "b.jpg")}
    masks = {f"x/{name}": png_mask() for name in ("a_mask.png", "b_mask.png")}
    source = write(tmp_path / "src", files | masks)
    with pytest.raises(
        DatasetError, match=r"--image-glob '\*\*/\*\.jpg' --mask-glob '\*\*/\*_mask\.png'"
    ):
        list_source(str(source), SourceOptions())
    globs = SourceOptions(image_glob="**/*.jpg", mask_glob="**/*_mask.png")
    assert len(list_source(str(source), globs)) == 2


@pytest.mark.parametrize(
    "names",
    [
        ("train/0.tar", "val/0.tar"),
        ("a-train-000.tar", "a-train-001.tar", "a-val-000.tar"),
        ("train_0.tar", "test_0.tar"),
        ("wds/Train/0.tar", "wds/Validation/0.tar"),
    ],
)
def test_tars_of_several_splits_do_not_become_one_dataset(tmp_path, names):
    files = {name: tar_of(f"{number}.jpg") for number, name in enumerate(names)}
    source = write(tmp_path / "src", files)
    with pytest.raises(DatasetError, match="the tars are of several splits"):
        index_in_place(str(source))
    split = next(word for word in ("val", "test", "Validation") if word in names[-1])
    to = str(tmp_path / "to")
    index_in_place(str(source), destination=to, source=SourceOptions(split=split))
    dataset = ShardDataset(to)
    assert [dataset[0]["__key__"], len(dataset)] == [str(len(names) - 1), 1]
    assert lint(to).faults == ()
    with pytest.raises(DatasetError, match="no tar of the split 'mini'"):
        index_in_place(str(source), source=SourceOptions(split="mini"))


def test_tars_of_one_split_are_one_dataset(tmp_path):
    names = ("train/0.tar", "train/1.tar", "training-2.tar", "extra.tar", "a-testimony.tar")
    source = write(tmp_path / "src", {name: tar_of(f"{name[:-4]}.jpg") for name in names})
    assert index_in_place(str(source)).manifest.num_samples == 5


@pytest.mark.parametrize(
    ("folder", "table"),
    [("train", "train.csv"), ("images", "labels.csv"), ("train", "train/metadata.jsonl")],
)
def test_a_folder_of_images_beside_a_table_is_not_the_only_class(tmp_path, folder, table):
    files = {f"{folder}/1.jpg": jpeg(), f"{folder}/2.jpg": jpeg(), table: b"file_name,label\n"}
    source = write(tmp_path / "src", files)
    with pytest.raises(
        DatasetError, match=rf"{folder} would be the only class, .* in {table}: pack"
    ):
        list_source(str(source), SourceOptions())
    assert list_source(str(source), SourceOptions(classes=(folder,))).classes == (folder,)
    assert classes_of(source / folder) == ()
    cats = write(tmp_path / "cats", {"cat/1.jpg": jpeg(), "notes.csv": b"file_name,label\n"})
    assert classes_of(cats) == ("cat",)


@pytest.mark.parametrize(
    ("folder", "labels"),
    [
        ("images", "val_annotations.txt"), ("jpg", "imagelabels.mat"), ("train", "train/list.json"),
        ("Images", "Images/1.xml"), ("data", "targets.npy"), ("test", "Labels.XLSX"),
    ],
)  # fmt: skip
def test_nor_is_it_beside_labels_of_another_form(tmp_path, folder, labels):
    files = {f"{folder}/1.jpg": jpeg(), f"{folder}/2.jpg": jpeg(), labels: b"1 cat\n2 dog\n"}
    source = write(tmp_path / "src", files)
    words = rf"{folder} would be the only class, .* in {labels}: write them as a table .*/{folder} "
    with pytest.raises(DatasetError, match=words):
        list_source(str(source), SourceOptions())
    assert list_source(str(source), SourceOptions(classes=(folder,))).classes == (folder,)
    assert classes_of(source / folder) == ()


@pytest.mark.parametrize(
    ("folder", "other"),
    [
        ("images", "README.txt"), ("images", "LICENSE.txt"), ("images", "images/a/1.txt"),
        ("images", "manifest.json"), ("images", "index.arrow"), ("cat", "labels.txt"),
        ("images", "notes.pdf"), ("images", ".labels.txt"),
    ],
)  # fmt: skip
def test_files_that_say_no_classes_leave_an_only_class(tmp_path, folder, other):
    source = write(tmp_path / "src", {f"{folder}/1.jpg": jpeg(), other: b"?", "done.txt": b""})
    assert classes_of(source) == (folder,)
