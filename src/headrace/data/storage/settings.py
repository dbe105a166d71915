"""Endpoints and credentials, found where each cloud's own tools find them.

The client reads most variables (AWS_*, GOOGLE_*, AZURE_*) itself. Here is what it does not:
profiles, Google's emulator variable, and that without any credentials requests are anonymous.
"""

from __future__ import annotations

import functools
import socket
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.data.storage.aws import s3_settings
from headrace.data.storage.urls import Location

# Where hosts of AWS, Google Cloud and Azure offer credentials of their own.
_METADATA_ADDRESS = ("169.254.169.254", 80)
_METADATA_WAIT_S = 0.5


def read_settings(location: Location) -> dict[str, Any]:
    """Return the client's settings for `location`, as the environment and profiles are right now.

    Raises:
        UsageError: A profile that does not exist, or one that needs a program that is missing.
    """
    if location.kind == "s3":
        return s3_settings(offered_by_host=_host_offers_credentials)
    if location.kind == "gs":
        return _google_settings()
    if location.kind == "az":
        return _azure_settings()
    return {}


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
    # As the `az` program calls them; the client knows longer names only.
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
