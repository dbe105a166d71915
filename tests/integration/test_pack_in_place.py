"""Datasets of tars and loose files that are indexed where they lie."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import pytest

from headrace import ShardDataset
from headrace.core.errors import DatasetError, TooManyBadSamplesError
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.lint import lint
from headrace.data.shards.shard_index import open_index, read_member, relative_data_url
from headrace.data.shards.sources.source_kinds import SourceOptions
from headrace.data.storage import open_store
from image_trees import cityscapes, class_folders, contents, jpeg, png_mask, write


def read_all(url: str, **options: object) -> dict[str, dict[str, bytes]]:
    index = open_index(url, **options)
    store = open_store(index.data_url)
    locations = [index.locate(sample) for sample in range(index.num_samples)]
    return {
        location.key: {
            member.extension: read_member(store, index, location, member)
            for member in location.members
        }
        for location in locations
    }


def tar(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def wild_tars(folder: Path) -> dict[str, dict[str, bytes]]:
    """Tars as others write them: every format, folders inside, keys repeated over shards."""
    samples = {}
    for number, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)):
        key = f"s{number}/x"
        samples[key] = {"jpg": jpeg(number), "json": b'{"n": %d}' % number}
        members = [(f"{key}.{extension.upper()}", data) for extension, data in samples[key].items()]
        tar(folder / f"part-{number}.tar", [("README", b"?"), *members], form)
    return samples


def test_tars_are_indexed_where_they_are_and_nothing_is_copied(tmp_path):
    samples = wild_tars(tmp_path / "tars")
    before = contents(tmp_path / "tars")
    report = index_in_place(str(tmp_path / "tars"))
    after = contents(tmp_path / "tars")
    assert after.keys() - before.keys() == {"index.arrow", "manifest.json"}
    assert {path: after[path] for path in before} == before
    assert read_all(str(tmp_path / "tars")) == samples
    assert report.manifest.source.num_ignored == 3
    assert [shard.name for shard in report.manifest.shards] == [f"part-{n}.tar" for n in range(3)]
    assert lint(str(tmp_path / "tars")).faults == ()


def test_the_index_of_someone_elses_tars_may_lie_elsewhere(tmp_path):
    samples = wild_tars(tmp_path / "tars")
    index_in_place(str(tmp_path / "tars"), destination=str(tmp_path / "index"))
    assert set(contents(tmp_path / "index")) == {"index.arrow", "manifest.json"}
    assert open_index(str(tmp_path / "index")).data_url == str(tmp_path / "tars")
    assert read_all(str(tmp_path / "index")) == samples
    assert lint(str(tmp_path / "index")).faults == ()


def split_of_class_folders(root: Path) -> str:
    class_folders(root / "train", each=2)
    class_folders(root / "val", each=1)
    index_in_place(str(root), source=SourceOptions(split="train"))
    return "train"


def tars_in_a_folder(root: Path) -> str:
    wild_tars(root / "my tars/new")
    index_in_place(str(root / "my tars/new"), destination=str(root))
    return "my tars/new"


@pytest.mark.parametrize("index", [split_of_class_folders, tars_in_a_folder])
def test_a_dataset_can_be_copied_with_the_data_in_its_folder(tmp_path, s3_url, index):
    folder = index(tmp_path / "src")
    samples = read_all(str(tmp_path / "src"))
    assert open_index(str(tmp_path / "src")).manifest.data_url == folder
    (tmp_path / "src").rename(tmp_path / "moved")
    assert read_all(str(tmp_path / "moved")) == samples
    assert lint(str(tmp_path / "moved")).faults == ()
    for path, data in contents(tmp_path / "moved").items():
        open_store(s3_url).put(path, data)
    assert read_all(s3_url) == samples
    dataset = pickle.loads(pickle.dumps(ShardDataset(s3_url)))
    assert dataset[0]["__key__"] in samples


@pytest.mark.parametrize(
    ("data", "dataset", "stored"),
    [
        ("/a/b", "/a/b", ""),
        ("/a/b/c/d", "/a/b", "c/d"),
        ("/a/bc", "/a/b", "/a/bc"),
        ("/a", "/", "a"),
        ("/a", "/b", "/a"),
        ("s3://b/a/c", "s3://b/a", "c"),
        ("s3://b/a", "s3://b", "a"),
        ("s3://b/a", "s3://c", "s3://b/a"),
        ("s3://b/a", "/a", "s3://b/a"),
        ("https://host/a/b%20c", "https://host/a", "b c"),
        ("https://host/a/b%2Fc", "https://host/a", "https://host/a/b%2Fc"),
        ("https://host/a/b", "https://other/a", "https://host/a/b"),
    ],
)
def test_data_below_a_dataset_are_named_relative_to_it(data: str, dataset: str, stored: str):
    assert relative_data_url(data, dataset) == stored


def test_faults_of_tars_are_all_named_and_nothing_is_written(tmp_path):
    wild_tars(tmp_path / "tars")
    whole = (tmp_path / "tars/part-0.tar").read_bytes()
    (tmp_path / "tars/part-0.tar").write_bytes(whole[:2000])
    tar(tmp_path / "tars/part-9.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")])
    with pytest.raises(DatasetError) as caught:
        index_in_place(str(tmp_path / "tars"))
    assert "part-0.tar: the tar ends within 's0/x.JPG'" in str(caught.value)
    assert "part-9.tar: members of sample 'a' do not lie side by side" in str(caught.value)
    assert "manifest.json" not in contents(tmp_path / "tars")


def test_loose_objects_of_class_folders_are_shards_of_their_own(tmp_path):
    source = class_folders(tmp_path / "src", each=3)
    write(source, {"cat/x.y.jpg": jpeg(9)})
    index_in_place(str(source))
    index = open_index(str(source))
    assert index.shard_sizes is None
    assert (index.num_samples, index.locate(4).shard) == (7, 4)
    location = index.locate(index.find("cat/x.y"))
    assert (location.path, location.shard) == ("cat/x.y.jpg", location.sample)
    samples = read_all(str(source))
    assert samples["cat/x.y"] == {"jpg": jpeg(9), "cls": b"0"}
    assert samples["dog/dog_002"]["cls"] == b"1"
    assert lint(str(source)).faults == ()
    assert pickle.loads(pickle.dumps(index)).locate(3) == index.locate(3)


def test_loose_pairs_are_read_where_they_are(tmp_path):
    source = cityscapes(tmp_path / "src", image_extension="jpg")
    index_in_place(str(source), source=SourceOptions(split="val"))
    samples = read_all(str(source))
    key = "aachen/aachen_000002_000019"
    assert samples[key] == {
        "jpg": (source / f"leftImg8bit/val/{key}_leftImg8bit.jpg").read_bytes(),
        "png": (source / f"gtFine/val/{key}_gtFine_labelIds.png").read_bytes(),
    }


def test_empty_objects_are_named(tmp_path):
    source = class_folders(tmp_path / "src", each=2)
    write(source, {"cat/empty.jpg": b""})
    with pytest.raises(TooManyBadSamplesError, match=r"cat/empty\.jpg: The object is empty"):
        index_in_place(str(source))
    report = index_in_place(str(source), max_bad=1)
    assert [bad.file for bad in report.manifest.bad] == ["cat/empty.jpg"]
    assert report.manifest.num_samples == 4


def test_an_empty_folder_and_none_at_all_are_reported_and_left_as_they_are(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(DatasetError, match=f"{name} holds nothing, or does not exist"):
            index_in_place(str(tmp_path / name))
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    write(tmp_path / "text", {"a/readme.txt": b"x"})
    with pytest.raises(DatasetError, match=r"1 other files \(a/readme\.txt\)"):
        index_in_place(str(tmp_path / "text"))


def test_a_folder_that_holds_a_dataset_is_not_indexed_over_it(tmp_path):
    wild_tars(tmp_path / "tars")
    index_in_place(str(tmp_path / "tars"))
    with pytest.raises(DatasetError, match="holds a dataset already"):
        index_in_place(str(tmp_path / "tars"))


def test_objects_in_a_bucket(tmp_path, s3_url):
    bucket = open_store(s3_url)
    for path, data in contents(class_folders(tmp_path / "src", each=4)).items():
        bucket.put(path, data)
    index_in_place(s3_url)
    samples = read_all(s3_url, cache_dir=tmp_path / "cache")
    assert len(samples) == 8
    assert samples["cat/cat_001"]["jpg"] == (tmp_path / "src/cat/cat_001.JPEG").read_bytes()
    assert sorted(file.suffix for file in (tmp_path / "cache/indexes").iterdir()) == [
        ".arrow", ".json",
    ]  # fmt: skip
    assert lint(s3_url).faults == ()


def test_masks_may_be_listed_by_any_pair_of_patterns(tmp_path):
    files = {f"seq{s}/img/{n}.jpg": jpeg(n) for s in range(2) for n in range(2)}
    files |= {f"seq{s}/seg/{n}.png": png_mask(n) for s in range(2) for n in range(2)}
    source = write(tmp_path / "src", files)
    options = SourceOptions(image_glob="*/img/*.jpg", mask_glob="*/seg/*.png")
    index_in_place(str(source), source=options)
    assert read_all(str(source))["seq1/0"] == {"jpg": jpeg(0), "png": png_mask(0)}
