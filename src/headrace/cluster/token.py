"""Ray's token authentication, which is always on: who has the token may join and connect.

It lies in a file that only its owner may read; processes are told the file, so that neither an
environment nor a command line shows the token.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from headrace.core import env


def make_token_file(path: Path) -> dict[str, str | None]:
    """Write a new token to a file; return the variables by which Ray's processes use it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return token_variables(path)


def token_variables(path: Path) -> dict[str, str | None]:
    """Return the variables that have Ray ask for, and give, the token in a file."""
    return {
        env.RAY_AUTH_MODE.name: "token",
        env.RAY_AUTH_TOKEN_PATH.name: str(path),
        env.RAY_AUTH_TOKEN.name: None,  # it would come first
    }
