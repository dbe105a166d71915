"""URLs of objects and paths below them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.data.storage import (
    join_url,
    open_store,
    parent_url,
    safe_url,
    split_url,
)
from headrace.data.storage.urls import cache_folder, check_path, parse_url


@pytest.mark.parametrize(
    ("url", "kind", "root", "prefix", "shown"),
    [
        ("/data/train", "local", "", "/data/train", "/data/train"),
        ("/data/../x/", "local", "", "/x", "/x"),
        ("file:///data/with%20space", "local", "", "/data/with space", "/data/with space"),
        ("file://localhost/data", "local", "", "/data", "/data"),
        ("file:///localhost/data", "local", "", "/localhost/data", "/localhost/data"),
        ("s3://bucket", "s3", "bucket", "", "s3://bucket"),
        ("s3://bucket/", "s3", "bucket", "", "s3://bucket"),
        ("S3://bucket/a/b/", "s3", "bucket", "a/b", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3", "bucket", "a", "s3a://bucket/a"),
        ("s3://bucket/a b%20c", "s3", "bucket", "a b%20c", "s3://bucket/a b%20c"),
        ("gs://bucket/a", "gs", "bucket", "a", "gs://bucket/a"),
        ("az://container/a", "az", "container", "a", "az://container/a"),
        ("memory://", "memory", "", "", "memory://"),
        ("memory://name/a", "memory", "name", "a", "memory://name/a"),
        ("https://host:8/a%20b/", "http", "https://host:8", "a b", "https://host:8/a%20b"),
        ("http://u:p@host/a?q=1#f", "http", "http://host", "a", "http://host/a"),
    ],
)
def test_urls_of_every_kind(url: str, kind: str, root: str, prefix: str, shown: str) -> None:
    location = parse_url(url)
    assert (location.kind, location.root, location.prefix, location.url) == (
        kind, root, prefix, shown,
    )  # fmt: skip


def test_plain_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("data").url == str(tmp_path / "data")
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_url("~/data").url == "/home/someone/data"


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("~/cache", "/home/someone/cache"),
        ("file:///scratch/my%20cache", "/scratch/my cache"),
        (Path("/scratch/../cache"), "/cache"),
        (Path("~/cache"), "/home/someone/cache"),
    ],
)
def test_a_cache_lies_in_a_folder_of_this_host(
    path: str | Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder(path, "cache_dir") == Path(folder)


@pytest.mark.parametrize(
    "path", ["s3://bucket/cache", "gs://b", "https://u:secret@host/x?sig=secret", "memory://x"]
)
def test_a_cache_at_the_url_of_a_store_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match=r"^--cache-dir=.*Name a folder") as raised:
        cache_folder(path, "--cache-dir")
    assert "secret" not in str(raised.value)
    with pytest.raises(UsageError, match="Is a variable unset"):  # not the working folder
        cache_folder("", "--cache-dir")


UNQUOTED = [
    "s3://AKIA:s3same/s3same@bucket/x", "s3://AKIA:12/s3same@bucket/x", "gs://u:/s3same@bucket/x", "https://u:s3same/s3same@host/x",
    "https://u:s3same?s3same@host/x", "https://u:s3same#s3same/@host:8/x", "s3:///x?sig=s3same@b/x",
]  # fmt: skip
"""URLs whose passwords hold what ends a host's name."""


@pytest.mark.parametrize("url", UNQUOTED[:-1])
def test_a_password_that_was_not_quoted_is_never_shown(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_url(url)
    assert "s3same" not in safe_url(url) + str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/x", "s3://", "s3:///x", "http:///x", "s3://a@b/x", *UNQUOTED),
        *("", "file://", "file://localhost"),  # not the working folder
    ],
)
def test_urls_that_name_no_store_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_url(url)


def test_keys_and_object_urls() -> None:
    below = parse_url("s3://bucket/folder")
    assert (below.key("a/b"), below.key("")) == ("folder/a/b", "folder")
    assert (below.object_url("a/b"), below.object_url("")) == (
        "s3://bucket/folder/a/b", "s3://bucket/folder",
    )  # fmt: skip
    top = parse_url("s3://bucket")
    assert (top.key("a"), top.object_url("a")) == ("a", "s3://bucket/a")


@pytest.mark.parametrize(
    ("url", "folder", "name"),
    [
        ("s3://b/train/0.tar", "s3://b/train", "0.tar"),
        ("s3://b/0.tar", "s3://b", "0.tar"),
        ("/data/0.tar", "/data", "0.tar"),
        ("/0.tar", "/", "0.tar"),
        ("https://host/a/b%20c.tar?sig=1", "https://host/a?sig=1", "b c.tar"),
        ("https://host/a b/é(1).tar", "https://host/a b", "é(1).tar"),
        ("https://host/a%2Fb/c.tar", "https://host/a%2Fb", "c.tar"),
    ],
)
def test_an_objects_url_splits_into_store_and_path(url: str, folder: str, name: str) -> None:
    assert split_url(url) == (folder, name)
    assert parent_url(url) == folder


@pytest.mark.parametrize(
    ("path", "name", "folder"),
    [
        ("/o/a%2Fb.jpg", "a%2Fb.jpg", "/o"),
        ("/o/a%E9.jpg", "a%E9.jpg", "/o"),
        ("/o/a%2Bb.jpg", "a%2Bb.jpg", "/o"),
        ("/o/100%.jpg", "100%.jpg", "/o"),
        ("/a//b.jpg", "b.jpg", "/a/"),
        ("/", "%", ""),
    ],
)
def test_an_object_that_is_no_name_in_a_folder_is_its_own_store(
    path: str, name: str, folder: str
) -> None:
    url = f"https://host{path}?alt=media"
    assert split_url(url) == (url, name)
    assert parent_url(url) == f"https://host{folder}?alt=media"
    location = parse_url(url)
    assert location.key(name) == ""
    assert location.object_url(name) == location.url
    assert location.written_path == path.rstrip("/")


def test_keys_below_a_folder_that_is_requested_as_it_is_written() -> None:
    below = parse_url("https://host/a%2Fb/c/")
    assert (below.written_path, below.key("d/e"), below.key("")) == ("/a%2Fb/c", "d/e", "")
    assert below.object_url("d/e") == "https://host/a%2Fb/c/d/e"
    plain = parse_url("https://host/a%20b/")
    assert (plain.written_path, plain.key("d/e")) == ("", "a b/d/e")


def test_a_whole_bucket_is_no_object() -> None:
    with pytest.raises(UsageError, match="whole bucket"):
        split_url("s3://bucket")


@pytest.mark.parametrize(
    ("url", "path", "joined"),
    [
        ("s3://b/train/", "a/b", "s3://b/train/a/b"),
        ("/data", "a", "/data/a"),
        ("https://host/x?sig=1", "a b", "https://host/x/a%20b?sig=1"),
        ("https://host/x", "epoch=3/a+b (1)", "https://host/x/epoch=3/a+b%20(1)"),
    ],
)
def test_join(url: str, path: str, joined: str) -> None:
    assert join_url(url, path) == joined


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@host/a/b?X-Amz-Signature=1#x", "https://host/a/b"),
        ("https://host?sig=1", "https://host"),
        ("s3://key:secret@bucket/a?b", "s3://bucket/a?b"),
        ("s3://bucket?secret=1/x", "s3://bucket"),
        ("odd://u:p@host/a?q", "odd://host/a"),
        ("/a/b?c", "/a/b?c"),
        ("file:///a/b?c", "file:///a/b?c"),
    ],
)
def test_safe_urls_hold_no_user_and_no_query(url: str, shown: str) -> None:
    assert safe_url(url) == shown


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "a/./b", "..", "a/..", "../a"])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(UsageError):
        check_path(path)


@pytest.mark.parametrize("path", ["a", "a/b", "...", "a/..b", ".hidden", "a b/ä?#%20"])
def test_paths_that_are(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "url",
    [
        "http://h:99999/a", "http://h:port/a", "http://[::1/a", "https://[zz]/a", "http://a b/c",
        "s3://{bucket}/a", "s3://b ucket/a", "gs://b\\x/a", "az://c\n/a", "s3://<bucket>/a",
        "https://${HOST}/a",
    ],
)  # fmt: skip
def test_names_that_no_bucket_or_host_has_are_refused(url: str) -> None:
    for parse in (parse_url, split_url):
        with pytest.raises(UsageError, match=r"which no such name does|is no URL|is no port"):
            parse(url)


@pytest.mark.parametrize("url", ["az://$web/a", "s3://Old_Bucket.x/a", "http://bücher.example/a"])
def test_names_that_are_unusual_are_not(url: str) -> None:
    assert parse_url(url).prefix == "a"


def test_settings_that_a_client_refuses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _ in env.connection_variables():
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match="Set AZURE_STORAGE_ACCOUNT"):
        open_store("az://container/a").head("x")
    for endpoint in ("http://h:99999", "localhost:9000", "s3://bucket", "http://a b"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(UsageError, match=r"is no URL|no such name"):
            open_store("s3://bucket/a").head("x")
