"""Endpoints and credentials, found where each cloud's own tools find them.

The client reads most variables (AWS_*, GOOGLE_*, AZURE_*) itself. This module adds what it lacks:
profiles, Google's emulator variable, and anonymous requests where there are no credentials.
"""

from __future__ import annotations

import configparser
import functools
import importlib
import importlib.util
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.data.storage.urls import Location, parse_url, safe_url

# What a profile has where boto3 is needed, before its keys are looked for and after.
_ROLE = "role_arn"
_SIGN_ON = ("sso_account_id", "sso_role_name")
_AFTER_KEYS = ("sso_session", "sso_start_url", "credential_process", "login_session")


def s3_settings(*, offered_by_host: Callable[[], bool]) -> dict[str, Any]:
    """Return the S3 client's settings that it does not read from the environment itself.

    A host may offer credentials itself (an instance role). UsageError: AWS_PROFILE names no
    profile, or one that needs boto3, which is missing.
    """
    profile = _read_profile()
    found = {
        "endpoint": _endpoint(profile),
        "region": env.AWS_REGION.get() or env.AWS_DEFAULT_REGION.get() or profile.get("region"),
    }
    settings: dict[str, Any] = {name: value for name, value in found.items() if value}
    # Not every S3 server supports bulk deletion, and we delete one object at a time.
    settings["disable_bulk_delete"] = True
    return settings | _s3_credentials(profile, settings.get("endpoint"), offered_by_host)


def _s3_credentials(
    profile: Mapping[str, str], endpoint: str | None, offered_by_host: Callable[[], bool]
) -> dict[str, Any]:
    """Return the settings of the first source of credentials, {} where the client finds it itself.

    The order is that of AWS's own tools: botocore's `create_credential_resolver`.
    """
    is_in_variables = _is_any_set(env.AWS_CREDENTIALS) or (
        _ROLE not in profile and _is_any_set([env.AWS_WEB_IDENTITY_TOKEN_FILE])
    )
    if is_in_variables:
        return {}
    if not profile.keys().isdisjoint({_ROLE, *_SIGN_ON}):
        return {"credential_provider": _boto3_provider()}
    if "aws_access_key_id" in profile:
        return _keys(profile)
    if not profile.keys().isdisjoint(_AFTER_KEYS):
        return {"credential_provider": _boto3_provider()}
    if _is_any_set(env.AWS_CONTAINER_CREDENTIALS):
        return {}
    return _host_credentials(endpoint, offered_by_host)


def _host_credentials(endpoint: str | None, offered_by_host: Callable[[], bool]) -> dict[str, Any]:
    """Return the settings for credentials that a host offers, or for requests without any."""
    if (env.AWS_EC2_METADATA_DISABLED.get() or "").lower() == "true":
        return {"skip_signature": True}
    named = env.AWS_METADATA_ENDPOINT.get() or env.AWS_EC2_METADATA_SERVICE_ENDPOINT.get()
    if named:
        return {"metadata_endpoint": named.rstrip("/")}
    elsewhere = endpoint is not None and "amazonaws.com" not in endpoint
    return {"skip_signature": True} if elsewhere or not offered_by_host() else {}


def _is_any_set(variables: Iterable[env.Variable]) -> bool:
    return any(variable.get() for variable in variables)


def _endpoint(profile: Mapping[str, str]) -> str | None:
    return (
        env.AWS_ENDPOINT_URL_S3.get()
        or env.AWS_ENDPOINT_URL.get()
        or profile.get("s3.endpoint_url")
        or profile.get("endpoint_url")
    )


def _keys(profile: Mapping[str, str]) -> dict[str, str]:
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    return {ours: profile[theirs] for theirs, ours in names.items() if theirs in profile}


def _read_profile() -> dict[str, str]:
    """Return the chosen profile's entries of both files; the credentials file takes precedence."""
    name = env.AWS_PROFILE.get()
    config = _parse(env.AWS_CONFIG_FILE.get() or "~/.aws/config")
    credentials = _parse(env.AWS_SHARED_CREDENTIALS_FILE.get() or "~/.aws/credentials")
    chosen = name or "default"
    section = f"profile {chosen}"
    entries: dict[str, str] = {}
    for file, sections in ((config, (chosen, section)), (credentials, (chosen,))):
        for candidate in sections:
            if file.has_section(candidate):
                entries.update(file[candidate])
    if name and not entries:
        raise UsageError(
            f"AWS_PROFILE={name}: no such profile in ~/.aws/config or ~/.aws/credentials (or where "
            "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE point). Correct or unset it."
        )
    return entries | _s3_service(config, entries.get("services"))


def _s3_service(config: configparser.ConfigParser, services: str | None) -> dict[str, str]:
    """Return the S3 endpoint of a profile's `services` section."""
    section = f"services {services}"
    lines = config.get(section, "s3", fallback="").splitlines() if services else []
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "endpoint_url":
            return {"s3.endpoint_url": value.strip()}
    return {}


def _parse(path: str) -> configparser.ConfigParser:
    # AWS files have no default section, and a "%" in a secret is not interpolation.
    parser = configparser.ConfigParser(default_section="", interpolation=None, strict=False)
    file = Path(path).expanduser()
    try:
        parser.read_string(file.read_text())
    except FileNotFoundError:
        return parser
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        kind = type(error).__name__
    else:
        return parser
    # Outside the handler and only its type: the parser's message quotes the line, maybe a secret.
    raise UsageError(f"{file} cannot be read as an AWS file ({kind}). Correct it.")


def _boto3_provider() -> object:
    if importlib.util.find_spec("boto3") is None:
        raise UsageError(
            "The AWS profile gets its credentials from a role, single sign-on or a program. "
            "`pip install boto3`, which knows these ways, or export keys: "
            '`eval "$(aws configure export-credentials --format env)"`.'
        )
    from obstore.auth.boto3 import Boto3CredentialProvider

    failures = importlib.import_module("botocore.exceptions")  # ships no types
    try:
        return Boto3CredentialProvider()
    except (failures.BotoCoreError, ValueError) as error:
        kind = type(error).__name__
    raise UsageError(
        f"The AWS profile's credentials could not be had ({kind}). `aws sts get-caller-identity` "
        "tells more."
    )


# Address where hosts of AWS, Google Cloud and Azure offer credentials.
_METADATA_ADDRESS = ("169.254.169.254", 80)
_METADATA_WAIT_S = 0.5


def read_settings(location: Location) -> dict[str, Any]:
    """Return the client's settings for `location`.

    UsageError: as for `s3_settings`, or an endpoint that is no URL of a server.
    """
    settings: dict[str, Any] = {}
    if location.kind == "s3":
        settings = s3_settings(offered_by_host=_host_offers_credentials)
    elif location.kind == "gs":
        settings = _google_settings()
    elif location.kind == "az":
        settings = _azure_settings()
    for name in settings.keys() & {"endpoint", "base_url"}:
        _check_endpoint(settings[name], location)
    return settings


def _check_endpoint(endpoint: str, location: Location) -> None:
    """Raise UsageError for what is no URL of a server: the client fails on it amid a request."""
    if parse_url(endpoint).kind != "http":
        raise UsageError(
            f"{location.url}: the endpoint {safe_url(endpoint)} is no URL of a server. Write it as "
            "http://host:port, for example in AWS_ENDPOINT_URL."
        )


def _google_settings() -> dict[str, Any]:
    settings: dict[str, Any] = {}
    emulator = env.STORAGE_EMULATOR_HOST.get()
    if emulator and not env.GOOGLE_BASE_URL.get():
        settings["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
    named = any(variable.get() for variable in env.GOOGLE_CREDENTIALS)
    ready = Path("~/.config/gcloud/application_default_credentials.json").expanduser().exists()
    elsewhere = bool(emulator or env.GOOGLE_BASE_URL.get())
    if not named and not ready and (elsewhere or not _host_offers_credentials()):
        settings["skip_signature"] = True
    return settings


def _azure_settings() -> dict[str, Any]:
    # The `az` program's names; the client knows longer ones only.
    found = {
        "account_name": env.AZURE_STORAGE_ACCOUNT.get(),
        "account_key": env.AZURE_STORAGE_KEY.get(),
    }
    settings: dict[str, Any] = {name: value for name, value in found.items() if value}
    named = any(variable.get() for variable in env.AZURE_CREDENTIALS)
    elsewhere = bool(env.AZURE_ENDPOINT.get())
    if not named and (elsewhere or not _host_offers_credentials()):
        settings["skip_signature"] = True
    return settings


@functools.cache
def _host_offers_credentials() -> bool:
    try:
        with socket.create_connection(_METADATA_ADDRESS, timeout=_METADATA_WAIT_S):
            return True
    except OSError:
        return False
