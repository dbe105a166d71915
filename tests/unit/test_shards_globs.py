"""Patterns that pair images with masks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.data.shards.members import PathPattern


@pytest.mark.parametrize(
    ("pattern", "path", "stem"),
    [
        ("images/*.jpg", "images/x.jpg", "x"),
        ("images/*.jpg", "images/a/x.jpg", None),
        ("images/**.jpg", "images/a/x.jpg", "a/x"),
        ("left/*/*_left.png", "left/aachen/a_1_left.png", "aachen/a_1"),
        ("./*/img/*.png", "s1/img/7.png", "s1/7"),
        ("**/*.png", "a/b/c.png", "a/b/c"),
        ("a(b)/*.png", "a(b)/x.png", "x"),
    ],
)
def test_the_stem_is_what_wildcards_stand_for(pattern, path, stem):
    assert PathPattern.parse(pattern).match(path) == stem


@pytest.mark.parametrize("pattern", ["images/x.jpg", "a/**/b/**", "***.jpg", ""])
def test_patterns_that_cannot_give_a_stem_are_wrong_use(pattern):
    with pytest.raises(UsageError):
        PathPattern.parse(pattern)


def test_the_folder_of_all_matches_is_known():
    assert [PathPattern.parse(p).folder for p in ("a/b/*.jpg", "*.jpg", "a/x*/y.jpg")] == [
        "a/b",
        "",
        "a",
    ]


@pytest.mark.parametrize(
    ("pattern", "path", "stem"),
    [
        ("images/**/*.jpg", "images/x.jpg", "x"),
        ("images/**/*.jpg", "images/a/b/x.jpg", "a/b/x"),
        ("**/*.jpg", "x.jpg", "x"),
        ("**/images/*.jpg", "images/x.jpg", "x"),
        ("*/**/img_*.jpg", "a/img_1.jpg", "a/1"),
        ("images/**x/*.jpg", "images/x/1.jpg", None),
        ("images**/*.jpg", "images/x.jpg", None),
    ],
)
def test_two_stars_and_a_slash_stand_for_no_folder_too(pattern, path, stem):
    assert PathPattern.parse(pattern).match(path) == stem


FOLDERS = st.lists(st.sampled_from(["a", "b.c", "images", "x"]), max_size=3)


@given(FOLDERS, FOLDERS, st.sampled_from(["", "images/", "*/", "*/images/", "s_*/"]))
def test_a_stem_gives_back_the_path_that_it_came_from(above, below, before):
    pattern = PathPattern.parse(f"{before}**/*.jpg")
    path = "/".join([*above, *below, "x.y.jpg"])
    stem = pattern.match(path)
    if before == "":
        assert stem == path.removesuffix(".jpg")
    assert stem is None or pattern.expand(stem) == path
