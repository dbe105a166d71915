"""Redaction of secrets in command lines, variables and texts.

A secret is known by its name (`--api-key X`, `HF_TOKEN=x`, `"password": "x"`, `Authorization: x`),
by its place in a URL (user and query), or by its own form (a key of AWS, a token of Hugging Face).
What is stored, printed or passed on goes through here first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "***"

_SECRET_PART = re.compile(
    r"secret|passw|passphrase|credential|signature|(?:access|account|admin|api|auth|encryption"
    r"|license|private|signing|ssh|storage|subscription)[-_. ]?key",
    re.IGNORECASE,
)
_SECRET_WORDS = {"sig", "auth", "authorization", "bearer", "cookie", "dsn"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_JOINED = re.compile(r"(?:token|pwd|jwt)$|^token(?!iz)", re.IGNORECASE)
_FOLDER_VARIABLES = {"PWD", "OLDPWD"}
_RANDOM = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[\w+/=.~-]{16,}")
"""A text as keys are: long, without spaces, of letters and digits."""
_COUNT_OR_MARK = re.compile(r"[-+]?[\d_.]+(?:e[-+]?\d+)?|</?\|?\w*\|?>|\[[A-Z]+\]?|", re.IGNORECASE)
"""Values of a language model's tokens: how many there are, or one such as <pad>."""


def is_secret(name: str, value: str | None = None) -> bool:
    """Whether a name is that of a secret, in any spelling: `hf_token`, `--apiKey`, `DB.PASSWORD`.

    With a value, also names that only suggest one are told apart: `wandb-key` is one where the
    value looks like a key, and `max_tokens` is none with a number.
    """
    if name in _FOLDER_VARIABLES:
        return False
    if _SECRET_PART.search(name):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    if "token" in words or "tokens" in words or any(map(_JOINED.search, re.split(r"\W|_", name))):
        return value is None or not _COUNT_OR_MARK.fullmatch(value)
    if _SECRET_WORDS & set(words):
        return True
    is_key = bool(words) and words[-1] in {"key", "keys", "pat"}
    return is_key and value is not None and _RANDOM.fullmatch(value) is not None


_KNOWN_FORMS = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}|gh[opsur]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-(?=[\w-]*\d)[\w-]{20,}|xox[abeprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}"
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_SCHEME = re.compile(r"\b[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_URL_END = re.compile(r"[\s\"'<>`]|\\[\"'n]|$")
_AUTHORITY_END = re.compile(r"[/?#]|$")
_PORT = re.compile(r"[^:]*(?::\d*)?|\[[^]]*\](?::\d*)?")
_USER_IN_TEXT = re.compile(r"://[^/@\s]+@")
_SCHEME_OF_HEADER = re.compile(r"\b(Bearer|Basic)(\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_HEADER = re.compile(
    r"(?P<name>\b(?:[\w-]*authorization|(?:set-)?cookie|x-[\w-]*(?:token|key|secret|auth)[\w-]*))"
    r"(?P<sign>\s*:\s*)(?P<value>[^\r\n\"'\\]+)",
    re.IGNORECASE,
)
_NAME_VALUE = re.compile(
    r"(?P<name>(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*)"
    r"(?P<sign>\\*[\"']?\]?\s*(?:=>|[:=])\s*)"
    r"(?P<value>(?:[rbfu]{0,2})(?P<quote>\\*[\"'])(?P<inside>.*?)(?P=quote)|[^\s,;&}\])\"'\\]+)",
    re.DOTALL,
)
_QUOTED_VALUE = re.compile(_NAME_VALUE.pattern.replace(r"|[^\s,;&}\])\"'\\]+)", ")"), re.DOTALL)
_OPTION_VALUE = re.compile(
    r"(?<![^\s\"'])(?P<name>--?[A-Za-z][\w.-]*)(?P<sign>\s+)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s-]\S*)"
)
_BARE_USER = re.compile(
    r"(?<![\w/:.@-])(?!mailto:)[\w.+-]+:[^\s/@:\"',]+@(?=[\w-]+(?:\.[\w-]+)+|localhost)"
)
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[\w.+-]+)=(?P<value>.*)", re.DOTALL)


def hide_url_users(text: str) -> str:
    """Return a text with the user part of every URL hidden, in pip's way."""
    return _USER_IN_TEXT.sub("://****@", text)


def redact_text(text: str, *, is_code: bool = False) -> str:
    """Return a text with the secrets in it hidden, wherever in it they stand.

    In code, only literals are values.
    """
    text = _KNOWN_FORMS.sub(HIDDEN, _BARE_USER.sub("", _without_url_secrets(text)))
    text = _SCHEME_OF_HEADER.sub(rf"\1\2{HIDDEN}", text)
    if is_code:
        return _QUOTED_VALUE.sub(_hidden_value, text)
    text = _HEADER.sub(rf"\g<name>\g<sign>{HIDDEN}", text)
    return _NAME_VALUE.sub(_hidden_value, _OPTION_VALUE.sub(_hidden_value, text))


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line's arguments with secrets hidden.

    Those are what `redact_text` finds in an argument, the whole value of an option or assignment
    with the name of a secret (`API_KEY=X`, `--set API_KEY=X`), and the argument after such an
    option (`--api-key X`).
    """
    redacted: list[str] = []
    option = ""
    for argument in arguments:
        if option and not argument.startswith("-") and is_secret(option, argument):
            redacted.append(HIDDEN)
        else:
            redacted.append(_redacted_argument(argument))
        is_option = argument.startswith("-") and "=" not in argument and " " not in argument
        option = argument if is_option else ""
    return tuple(redacted)


def hide_secrets(value: Any, name: str = "") -> Any:
    """Return a JSON value with secrets hidden, by the names of fields and within texts."""
    if isinstance(value, dict):
        return {key: hide_secrets(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hide_secrets(each, name) for each in value]
    if name and is_secret(name, None if value is None else str(value)):
        return value if value is None or isinstance(value, bool) else HIDDEN
    return _redacted_argument(value) if isinstance(value, str) else value


def _redacted_argument(argument: str) -> str:
    assigned = _ASSIGNMENT.fullmatch(argument)
    if assigned is None:
        return redact_text(argument)
    name, value = assigned["name"], assigned["value"]  # the value may be an assignment, too
    return f"{name}={HIDDEN if is_secret(name, value) else _redacted_argument(value)}"


def _hidden_value(found: re.Match[str]) -> str:
    groups = found.groupdict()
    inside = groups.get("inside")
    value = found["value"] if inside is None else inside
    if value == HIDDEN:
        return found[0]
    if not is_secret(found["name"], value):  # but there may be one in the value
        before = found[0].removesuffix(found["value"])
        return before + found.re.sub(_hidden_value, found["value"])
    hidden = (
        HIDDEN if inside is None else found["value"].replace(inside, HIDDEN) if inside else '""'
    )
    return f"{found['name']}{found['sign']}{hidden}"


def _without_url_secrets(text: str) -> str:
    """Return a text whose URLs have no user and no query."""
    pieces, end = [], 0
    schemes = list(_SCHEME.finditer(text))
    for number, scheme in enumerate(schemes):
        pieces.append(text[end : scheme.end()])
        following = schemes[number + 1].start() if number + 1 < len(schemes) else len(text)
        stop = _URL_END.search(text, scheme.end(), following)
        end = following if stop is None else stop.start()
        pieces.append(_without_user_and_query(text[scheme.end() : end]))
    return "".join((*pieces, text[end:]))


def _without_user_and_query(rest: str) -> str:
    """Return what follows `scheme://` in a URL without the user and the query."""
    boundary = _AUTHORITY_END.search(rest)
    authority = rest[: boundary.start()] if boundary else rest
    if "@" in authority:
        rest = rest[authority.rindex("@") + 1 :]
    if "@" in rest and _PORT.fullmatch(authority.rpartition("@")[2]) is None:
        rest = rest.rpartition("@")[2]  # a password with a slash, which should have been quoted
    return rest.partition("?")[0]
