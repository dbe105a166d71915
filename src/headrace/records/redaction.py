"""Secrets hidden in command lines and texts: passwords, keys, users and queries of URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"token|secret|passw|credential|signature|(?:api|access|private)[-_]?key", re.IGNORECASE
)
_NAME_VALUE_OPTIONS = ("--environment", "--hyperparameter")  # after which NAME=VALUE comes
_USER_IN_URL = re.compile(r"(\w+://)[^/@\s]*@")
_USER_IN_TEXT = re.compile(r"://[^/@\s]+@")
_QUERY_IN_URL = re.compile(r"(\w+://[^?\s]*)\?\S*")


def hide_url_users(text: str) -> str:
    """Return a text in which the user part of every URL is hidden, as pip hides it in its own."""
    return _USER_IN_TEXT.sub("://****@", text)


def is_secret(name: str) -> bool:
    """Whether what has such a name looks like a secret."""
    return _SECRET_NAME.search(name) is not None


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line's arguments without what looks like a secret.

    Hidden are the user part and the query of every URL, and the values of options and
    assignments whose name speaks of a token, secret, password, credential or key
    (`--api-key X`, `--api-key=X`, `API_KEY=X`).
    """
    kept: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_option = argument.startswith("-")
        if hide_next and not is_option:
            kept.append(HIDDEN)
        elif equals and "://" not in name and _SECRET_NAME.search(name):
            kept.append(f"{name}={HIDDEN}")
        elif name in _NAME_VALUE_OPTIONS and "=" in value and is_secret(value.partition("=")[0]):
            kept.append(f"{name}={value.partition('=')[0]}={HIDDEN}")
        else:
            kept.append(_QUERY_IN_URL.sub(r"\1", _USER_IN_URL.sub(r"\1", argument)))
        hide_next = is_option and not equals and _SECRET_NAME.search(name) is not None
    return tuple(kept)
