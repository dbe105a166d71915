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

[role-with-keys]
aws_access_key_id = role-id
aws_secret_access_key = role-secret

[sign-on-with-keys]
aws_access_key_id = stale-id
aws_secret_access_key = stale-secret

[program-with-keys]
aws_access_key_id = program-id
aws_secret_access_key = program-secret
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

[profile role-with-keys]
role_arn = arn:aws:iam::1:role/x
source_profile = role-with-keys

[profile sign-on-with-keys]
sso_start_url = https://start.example
sso_region = eu-west-1
sso_account_id = 1
sso_role_name = reader

[profile program-with-keys]
credential_process = /nowhere/program

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


CONTAINERS = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]


@pytest.mark.parametrize("variable", [None, *CONTAINERS, "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_a_profiles_role_comes_before_its_keys_and_before_what_a_pod_offers(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "role-with-keys")
    if variable is not None:
        monkeypatch.setenv(variable, "/somewhere")
    assert _settings().keys() == {"credential_provider"}


@pytest.mark.parametrize("variable", [None, *CONTAINERS])
def test_single_sign_on_comes_before_keys_and_containers(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "sign-on-with-keys")
    if variable is not None:
        monkeypatch.setenv(variable, "/somewhere")
    assert _settings().keys() == {"credential_provider"}
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")  # of which the client knows
    assert _settings() == {}


@pytest.mark.parametrize("variable", CONTAINERS)
@pytest.mark.parametrize(
    ("profile", "key"),
    [(None, "default-id"), ("team", "team-id"), ("program-with-keys", "program-id")],
)
def test_a_profiles_keys_come_before_a_containers_credentials(
    profile: str | None, key: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/somewhere")
    if profile is not None:
        monkeypatch.setenv("AWS_PROFILE", profile)
    assert _settings()["access_key_id"] == key
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")  # the client reads it itself
    assert "access_key_id" not in _settings()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    (tmp_path / ".aws/credentials").unlink()
    assert _settings() == {"region": "eu-west-1"}  # the client asks the container


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
