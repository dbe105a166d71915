"""Ray's token authentication, which is always on: who has the token may join and connect.

It lies in a file that only its owner may read; processes are told the file, so that neither an
environment nor a command line shows the token.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError

HOW_TO_MAKE_ONE = (
    "Make one with `(umask 077; openssl rand -hex 32 > FILE)`, copy it to every host, and name it "
    "there: --token-file FILE."
)


def new_token() -> str:
    """Return a token that nobody had before."""
    return secrets.token_hex(32)


def given_token(token_file: str | None) -> str | None:
    """Return the token that somebody gave this host; None: nobody did.

    Args:
        token_file: The file that a flag names; it comes before what Ray's variables say.

    Raises:
        UsageError: The file cannot be read, or has no token in it.
    """
    if token_file is None and (token := env.RAY_AUTH_TOKEN.get()):
        return token.strip()
    named = "--token-file" if token_file is not None else env.RAY_AUTH_TOKEN_PATH.name
    path = token_file if token_file is not None else env.RAY_AUTH_TOKEN_PATH.get()
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise UsageError(
            f"{named} {path}: the token cannot be read: {reason}. {HOW_TO_MAKE_ONE}"
        ) from None  # the cause may quote what is in the file
    if not token:
        raise UsageError(f"{named} {path}: the file is empty. {HOW_TO_MAKE_ONE}")
    return token


def write_token_file(path: Path, token: str) -> dict[str, str | None]:
    """Write a token to a new file; return the variables by which Ray's processes use it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return token_variables(path)


def token_variables(path: Path) -> dict[str, str | None]:
    """Return the variables that have Ray ask for, and give, the token in a file."""
    return {
        env.RAY_AUTH_MODE.name: "token",
        env.RAY_AUTH_TOKEN_PATH.name: str(path),
        env.RAY_AUTH_TOKEN.name: None,  # it would come first
    }
