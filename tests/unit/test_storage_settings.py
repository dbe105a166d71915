"""Settings of object stores from profiles and the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.data.storage.client.credentials import read_settings, s3_settings
from headrace.data.storage.urls import parse_url

_CREDENTIALS = """
[default]
aws_access_key_id = default-id
aws_secret_access_key = 100%secret

[team]
aws_access_key_id = team-id
aws_secret_access_key = team-secret
aws_session_token = team-token
"""
_CONFIG = """
[default]
region = eu-west-1

[profile team]
region = eu-north-1
endpoint_url = https://any.example
services = special

[profile role]
role_arn = arn:aws:iam::1:role/x

[services special]
s3 =
    endpoint_url = https://s3.example
ec2 =
    endpoint_url = https://ec2.example
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _ in env.connection_variables():
        monkeypatch.delenv(name)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(_CREDENTIALS)
    (tmp_path / ".aws/config").write_text(_CONFIG)
    monkeypatch.setenv("HOME", str(tmp_path))


def _settings(*, host: bool = False) -> dict[str, Any]:
    settings = s3_settings(offered_by_host=lambda: host)
    assert settings.pop("disable_bulk_delete") is True
    return settings


def test_the_default_profile() -> None:
    assert _settings() == {
        "access_key_id": "default-id",
        "secret_access_key": "100%secret",
        "region": "eu-west-1",
    }


def test_a_named_profile_with_an_endpoint_for_s3_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert _settings() == {
        "access_key_id": "team-id",
        "secret_access_key": "team-secret",
        "session_token": "team-token",
        "region": "eu-north-1",
        "endpoint": "https://s3.example",
    }


def test_variables_come_before_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")  # the client reads it itself
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    assert _settings() == {"region": "us-west-2", "endpoint": "http://one"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://two")
    assert _settings()["endpoint"] == "http://two"


def test_a_profile_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="AWS_PROFILE=nobody"):
        _settings()


def test_profiles_in_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, name in (
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ("AWS_CONFIG_FILE", "config"),
    ):
        (tmp_path / ".aws" / name).rename(tmp_path / name)
        monkeypatch.setenv(variable, str(tmp_path / name))
    assert _settings()["access_key_id"] == "default-id"


def test_a_profile_of_a_role_is_left_to_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "role")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises((UsageError, ValueError)):  # the role names no source of credentials
        _settings()


def test_without_credentials_requests_are_anonymous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aws/credentials").unlink()
    (tmp_path / ".aws/config").unlink()
    assert _settings(host=False) == {"skip_signature": True}
    assert _settings(host=True) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    assert _settings(host=True)["skip_signature"] is True
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://[fd00:ec2::254]/")
    assert _settings(host=False) == {
        "endpoint": "http://one",
        "metadata_endpoint": "http://[fd00:ec2::254]",
    }
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert _settings(host=True) == {"endpoint": "http://one", "skip_signature": True}


def test_google_and_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    google, azure = parse_url("gs://b/x"), parse_url("az://c/x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
    assert read_settings(google) == {"base_url": "http://127.0.0.1:1", "skip_signature": True}
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/file")
    assert read_settings(google) == {"base_url": "http://127.0.0.1:1"}
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    assert read_settings(azure) == {"skip_signature": True}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    assert read_settings(azure) == {"account_name": "account", "account_key": "a2V5"}
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT")
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    assert read_settings(azure) == {}
