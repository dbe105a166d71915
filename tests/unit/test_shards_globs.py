"""Patterns that pair images with masks."""

from __future__ import annotations

import pytest

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
