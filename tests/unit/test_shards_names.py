"""Member names in tars: keys, extensions, names that are refused."""

from __future__ import annotations

import pytest

from headrace.data.shards.members import extension_of, key_of, refusal, split_name, stem_of


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b/x.jpg", ("a/b/x", "jpg")),
        ("x.MASK.PNG", ("x", "mask.png")),
        ("v1.0/x.cls", ("v1.0/x", "cls")),
        ("./x.jpg", ("./x", "jpg")),
        ("README", None),
        ("a/.hidden", None),
        ("x.", None),
        ("__index__/x.json", None),
        ("__index__", None),
    ],
)
def test_members_split_where_webdataset_splits_them(name, parts):
    assert split_name(name) == parts


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("/etc/x.jpg", "absolute"),
        ("a/../x.jpg", "'..'"),
        ("..", "'..'"),
        ("x.pyd", ".pyd"),
        ("x.PKL", ".pkl"),
        ("x.pth", ".pth"),
        ("x.pkl.gz", ".pkl"),
        ("a\0.jpg", "zero byte"),
    ],
)
def test_names_that_could_do_harm_are_refused(name, word):
    assert word in (refusal(name) or "")


@pytest.mark.parametrize("name", ["x.jpg", "a..b/x.jpg", "pkl/x.jpg", "x.pklz", "a/pth"])
def test_names_that_only_look_alike_are_accepted(name):
    assert refusal(name) is None


@pytest.mark.parametrize(
    ("stem", "key"),
    [
        ("cat/x", "cat/x"),
        ("v1.0/x", "v1.0/x"),
        ("cat/x.y", "cat/x%2Ey"),
        ("50%/x%", "50%25/x%25"),
        ("__x", "%5F_x"),
        ("a\nb", "a%0Ab"),
    ],
)
def test_keys_keep_what_they_can(stem, key):
    assert key_of(stem) == key


def test_extensions_are_spelled_alike():
    assert [extension_of(path) for path in ("a/x.JPEG", "x.jpg", "x.tar.PNG", "README", ".x")] == [
        "jpg", "jpg", "png", "", "",
    ]  # fmt: skip
    assert [stem_of(path) for path in ("a/x.JPEG", "a.b/README", ".x")] == [
        "a/x",
        "a.b/README",
        ".x",
    ]
