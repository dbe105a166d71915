"""How stores are reached: credentials that a host offers, anonymous requests, https."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from headrace.core import env
from headrace.core.errors import DeniedError, NotFoundError, StorageError
from headrace.data.storage import RetryPolicy, StorageConfig, open_store
from services.object_servers import (
    CredentialsHandler,
    GoogleHandler,
    PlainWebHandler,
    WebHandler,
    object_server,
)


@pytest.fixture(autouse=True)
def _a_bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _ in env.connection_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("source", ["instance", "pod"])
def test_requests_are_signed_with_what_the_host_offers(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3's API is what Cloud Storage's XML API was made after: one server speaks both.
    with object_server(CredentialsHandler) as host, object_server(GoogleHandler) as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        if source == "instance":
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{host.endpoint}/")
        else:
            (tmp_path / "token").write_text("pod-token")
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{host.endpoint}/pod")
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        store = open_store("s3://bucket/x")
        store.put("a", b"123")
        assert bytes(store.get("a")) == b"123"
        assert [info.path for info in store.list()] == ["a"]
    assert len(bucket.headers) >= 3
    for headers in bucket.headers:
        assert "Credential=HOSTKEY/" in headers["authorization"]
        assert "/eu-west-1/s3/" in headers["authorization"]
        assert headers["x-amz-security-token"] == "host-session"


def test_without_credentials_requests_are_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_server(GoogleHandler) as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
        store = open_store("s3://bucket/x")
        store.put("a", b"123")
        assert bytes(store.get("a")) == b"123"
    assert bucket.headers
    assert not any("authorization" in headers for headers in bucket.headers)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Make a certificate authority and a certificate of its for localhost."""
    made = trustme.CA()
    host = made.issue_cert("localhost")
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    host.cert_chain_pems[0].write_to_path(tmp_path / "host.pem")
    host.private_key_pem.write_to_path(tmp_path / "host.key")
    return tmp_path


def test_https_is_read_where_the_certificate_is_trusted_and_refused_elsewhere(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StorageConfig(retry=RetryPolicy(deadline_s=10))
    certificate = (str(authority / "host.pem"), str(authority / "host.key"))
    with object_server(WebHandler, certificate) as server:
        store = open_store(f"{server.endpoint}/files", config=config)
        assert store.url.startswith("https://")
        with pytest.raises(StorageError, match="the server's certificate is not trusted"):
            store.get("x")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
        store.put("x", b"123")
        assert bytes(store.get_range("x", 1, 2)) == b"23"


@pytest.mark.parametrize("data", [b"", b"123"])
@pytest.mark.parametrize("status", [401, 403, 405, 501])
def test_an_object_is_described_by_get_where_a_web_server_refuses_head(
    status: int, data: bytes
) -> None:
    """As a URL that is signed for GET, and servers that know nothing else."""

    with object_server(type("Plain", (PlainWebHandler,), {"refusal": status})) as server:
        store = open_store(f"{server.endpoint}/files?signature=1")
        store.put("x", data)
        described = store.head("x")
        with pytest.raises(NotFoundError):
            store.head("y")
        with pytest.raises(DeniedError):
            store.head("denied")
    assert (described.path, described.size_bytes) == ("x", len(data))
    assert described.etag == server.objects["files/x"].etag.strip('"')
