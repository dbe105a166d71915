"""A canary in every place where a secret may stand: no message, log or traceback shows it."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from slow_proxy import Faults, slow_proxy

from headrace.core.errors import HeadraceError
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.storage import RetryPolicy, StorageConfig, open_store, safe_url
from services.object_servers import WebHandler, object_server

_CANARY = "CANARYd41d8cd98f00b204"
_CONFIG = StorageConfig(
    retry=RetryPolicy(first_wait_s=0.01, longest_wait_s=0.05, deadline_s=0.5, unreachable_s=0.2)
)


def _error_text(call: Callable[[], object]) -> str:
    """Return all that the error of `call` can show, to whoever prints it in whatever way."""
    with pytest.raises(HeadraceError) as caught:
        call()
    shown = []
    error: BaseException | None = caught.value
    while error is not None:
        shown += [str(error), repr(error), repr(error.args)]
        error = error.__cause__ or error.__context__
    shown.append("".join(traceback.format_exception(caught.value)))
    shown.append(str(pickle.loads(pickle.dumps(caught.value))))
    return "\n".join(shown)


def test_presigned_queries_and_passwords_of_urls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with object_server(WebHandler) as server:
        host = server.endpoint.removeprefix("http://")
        url = f"http://user:{_CANARY}@{host}/folder?X-Amz-Signature={_CANARY}&X-Amz-Date=1"
        store = open_store(url)
        store.put("x", b"123")
        assert bytes(store.get("x")) == b"123"
        assert all(f"X-Amz-Signature={_CANARY}" in request for request in server.requests)
        assert all("authorization" in headers for headers in server.headers)
        text = _error_text(lambda: store.get("missing")) + _error_text(
            lambda: store.get_range("x", 5, 5)
        )
        with slow_proxy(
            server.endpoint, faults=Faults(busy=1.0, methods=("GET", "PROPFIND"))
        ) as proxy:
            busy = open_store(url.replace(host, proxy.endpoint[7:]), config=_CONFIG)
            text += _error_text(lambda: busy.get_range("x", 0, 3)) + _error_text(
                lambda: list(busy.list())
            )
        text += _error_text(lambda: busy.get_range("x", 0, 3))  # nothing listens there any more
    text += repr(store) + str(store) + store.url + caplog.text + safe_url(url)
    assert f"http://{host}/folder/missing" in text
    assert _CANARY not in text


def test_presigned_addresses_in_a_table(tmp_path: Path) -> None:
    table = tmp_path / "photos.csv"
    rows = [f"https://host/cat{end}?X-Amz-Signature={_CANARY}" for end in (".jpg", ".png")]
    table.write_text("\n".join(["url", *rows]))
    text = _error_text(lambda: pack(str(table), str(tmp_path / "dst"), PackOptions()))
    assert "https://host/cat.jpg and https://host/cat.png" in text
    assert _CANARY not in text


def test_keys_and_tokens(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"):
        monkeypatch.setenv(name, _CANARY)
    store = open_store(s3_url, config=_CONFIG)
    text = (
        _error_text(lambda: store.get("x"))
        + _error_text(lambda: store.put("x", b"1"))
        + repr(store)
    )
    assert _CANARY not in text + repr(pickle.dumps(store))


def test_damaged_profiles(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = 1\n{_CANARY}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    text = _error_text(lambda: open_store(s3_url).get("x"))
    assert str(file) in text
    assert _CANARY not in text


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{_CANARY}@bucket/x",
        f"s3://bucket?secret={_CANARY}",
        f"ftp://user:{_CANARY}@host/x?{_CANARY}",
        f"http://?{_CANARY}",
    ],
)
def test_urls_that_cannot_be(url: str) -> None:
    assert _CANARY not in _error_text(lambda: open_store(url))
