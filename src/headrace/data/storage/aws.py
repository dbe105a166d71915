"""S3 settings."""

from __future__ import annotations

from typing import Any

from headrace.core import env


def s3_settings() -> dict[str, Any]:
    """Return the client's settings beyond those that it reads from the environment itself."""
    return {
        "endpoint": env.AWS_ENDPOINT_URL_S3.get() or env.AWS_ENDPOINT_URL.get(),
        "disable_bulk_delete": True,
    }
