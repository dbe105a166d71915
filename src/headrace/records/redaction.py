"""Redaction of secrets in command lines and texts: passwords, keys, users and queries of URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"token|secret|passw|credential|signature|(?:api|access|private)[-_]?key", re.IGNORECASE
)
_NAME_VALUE_OPTIONS = ("--environment", "--hyperparameter")  # followed by NAME=VALUE
_USER_IN_URL = re.compile(r"(\w+://)[^/@\s]*@")
_USER_IN_TEXT = re.compile(r"://[^/@\s]+@")
_QUERY_IN_URL = re.compile(r"(\w+://[^?\s]*)\?\S*")


def hide_url_users(text: str) -> str:
    """Return a text with the user part of every URL hidden, in pip's way."""
    return _USER_IN_TEXT.sub("://****@", text)


def is_secret(name: str) -> bool:
    """Whether a name is that of a secret."""
    return _SECRET_NAME.search(name) is not None


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line's arguments with secrets hidden.

    Those are the user part and the query of every URL, and the values of options and assignments
    whose name contains a word such as token, secret or password (`--api-key X`, `API_KEY=X`).
    """
    redacted: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_option = argument.startswith("-")
        if hide_next and not is_option:
            redacted.append(HIDDEN)
        elif equals and "://" not in name and _SECRET_NAME.search(name):
            redacted.append(f"{name}={HIDDEN}")
        elif name in _NAME_VALUE_OPTIONS and "=" in value and is_secret(value.partition("=")[0]):
            redacted.append(f"{name}={value.partition('=')[0]}={HIDDEN}")
        else:
            redacted.append(_QUERY_IN_URL.sub(r"\1", _USER_IN_URL.sub(r"\1", argument)))
        hide_next = is_option and not equals and _SECRET_NAME.search(name) is not None
    return tuple(redacted)
