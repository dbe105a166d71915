"""A folder's listing: each entry is a sample, ignored and counted, bad, or in an error."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DatasetError
from headrace.data.shards.data_files import is_image, is_system_path
from headrace.data.shards.sources.source_kinds import SourceOptions, list_source

FOLDERS = ["cat", "dog", "cat.v2", ".git", "@eaDir", "_x", "a b", "é", "x.jpg", "n.tar", "images"]
NAMES = [
    "1.jpg",
    "2.JPG",
    "3.jpeg",
    "4.png",
    "5.tar.webp",
    "a#?*[1]\n.jfif",
    "._1.jpg",
    ".x.png",
    "Thumbs.db",
    "x.tar",
    "x.tar.gz",
    "x.txt",
    "x",
]
MADE = {
    "file": lambda path: path.write_bytes(b"?"),
    "dangling": lambda path: path.symlink_to("/nowhere/x"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
}


def path_of(entry: tuple[list[str], str, str]) -> str:
    return "/".join((*entry[0], entry[1]))


ENTRIES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(FOLDERS), min_size=1, max_size=3),
        st.sampled_from(NAMES),
        st.sampled_from(["file", "file", "dangling", "pipe", "folder"]),
    ),
    max_size=12,
    unique_by=path_of,
)


@settings(max_examples=80, deadline=None)
@given(ENTRIES)
def test_no_entry_is_lost(entries):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        whole = [([folder], "whole.jpg", "file") for folder in FOLDERS]  # each could be a class
        for folders, last, kind in [*entries, *whole]:
            folder = root.joinpath(*folders)
            folder.mkdir(parents=True, exist_ok=True)
            MADE[kind](folder / last)
        files = {
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        try:
            table = list_source(name, SourceOptions())
        except DatasetError as error:
            assert name in str(error)  # noqa: PT017
            return
        known = {path for path in table.images.paths.to_pylist() if path}
        bad = {each.file for each in table.bad}
        assert len(known) + len(bad) + table.source.num_ignored == len(files)
        assert known | bad <= files
        assert known == {
            path
            for path in files - bad
            if is_image(path) and not is_system_path(path) and (root / path).is_file()
        }
        unreadable = {path for path in files if not (root / path).is_file()}
        assert bad <= unreadable
        links = {path for path in unreadable if (root / path).is_symlink()}
        assert {path for path in links if not is_system_path(path)} <= bad
        tops = {path.partition("/")[0] for path in known if "/" in path}
        assert tops <= set(table.classes)
        every = {path.name for path in root.iterdir() if path.is_dir()}
        assert not table.classes or {each for each in every if not is_system_path(each)} == set(
            table.classes
        )
