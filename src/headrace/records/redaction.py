"""Redaction of secrets in command lines, variables and texts.

A secret is known by its name (`--api-key X`, `HF_TOKEN=x`, `"password": "x"`, `Authorization: x`),
by its place in a URL (user, query, the path of a hook or of a package index), or by its own form (a
key of AWS, a token of Hugging Face). What is stored, printed or passed on goes through here first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"

_SECRET_PART = re.compile(
    r"secret|passw|passphrase|credential|signature|webhook|kennwort|wachtwoord|contrase[nñ]a"
    r"|mot[-_. ]?de[-_. ]?passe|(?:access|account|admin|api|auth|client"
    r"|consumer|deploy|encryption|license|master|private|service|shared|signing|ssh|storage"
    r"|subscription)[-_. ]?key",
    re.IGNORECASE,
)
_SECRET_WORDS = {
    "sig", "auth", "authorization", "bearer", "cookie", "dsn", "cred", "creds", "otp", "senha",
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_JOINED = re.compile(r"(?:token|pwd|jwt)$|^token(?!iz)", re.IGNORECASE)
_PASS = re.compile(
    r"(?:^|[-_.])(?:pass|pw)$|(?:db|pg|ssh|smtp|mail|sql|user|root)pass$", re.IGNORECASE
)
_PASS_OVER_DATA = re.compile(
    r"(?:forward|backward|first|second|last|one|two|single|multi|full|low|high|band|by|per|extra)"
    r"[-_.]?pass$",
    re.IGNORECASE,
)
_KEY = re.compile(
    r"(?:^|[^A-Za-z])(?:[Kk]eys?|[Pp]at|KEYS?|PAT)$|[A-Za-z](?:Keys?|Pat)$|[a-z](?:KEYS?|PAT)$"
)
_FOLDER_VARIABLES = {"PWD", "OLDPWD"}
_RANDOM = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[\w+/=.~-]{16,}")
"""A text as keys are: long, without spaces, of letters and digits."""
_COUNT_OR_MARK = re.compile(r"[-+]?[\d_.]+(?:e[-+]?\d+)?|</?\|?\w*\|?>|\[[A-Z]+\]?|", re.IGNORECASE)
"""Values of a language model's tokens: how many there are, or one such as <pad>."""
_SWITCH = re.compile(r"true|false|yes|no|on|off|none|null", re.IGNORECASE)


def is_secret(name: str, value: str | None = None) -> bool:
    """Whether a name is that of a secret, in any spelling: `hf_token`, `--apiKey`, `DB.PASSWORD`.

    With a value, also names that only suggest one are told apart: `wandb-key` is one where the
    value looks like a key, and `max_tokens` is none with a number.
    """
    if name in _FOLDER_VARIABLES:
        return value is not None and not value.startswith(("/", "~"))  # ODBC has one of that name
    if _SECRET_PART.search(name):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    if "token" in words or "tokens" in words or any(map(_JOINED.search, re.split(r"\W|_", name))):
        return value is None or not _COUNT_OR_MARK.fullmatch(value)
    if _SECRET_WORDS & set(words):
        return True
    if _PASS.search(name) and not _PASS_OVER_DATA.search(name):
        return value is None or not (_COUNT_OR_MARK.fullmatch(value) or _SWITCH.fullmatch(value))
    return value is not None and bool(_KEY.search(name)) and bool(_RANDOM.fullmatch(value))


def _suggests_secret(name: str) -> bool:
    """Whether a name is that of a secret with some values."""
    return name in _FOLDER_VARIABLES or is_secret(name) or bool(_KEY.search(name))


_KNOWN_FORMS = re.compile(
    r"\b(?:(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}|gh[opsur]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-(?=[\w-]*\d)[\w-]{20,}|xox[abeprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}"
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|nvapi-[\w-]{20,}|gsk_\w{20,}|xai-\w{20,}|r8_\w{20,}"
    r"|[rs]k_(?:live|test)_\w{16,}|dapi[0-9a-f]{32}|dop_v1_[0-9a-f]{32,}|pypi-[\w-]{32,}"
    r"|glsa_\w{20,}|lin_api_\w{20,}|hvs\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|tskey-[\w-]{10,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]+|(?<=/api/webhooks/)[\w/.-]+"
    r"|(?<=api\.telegram\.org/bot)[\w:-]+|(?<=api\.telegram\.org/file/bot)[\w:-]+"
    r"|(?<=/bot)\d{5,}:[\w-]{20,}|(?<=/with/key/)[\w-]+"
)
_SCHEME = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}:(?:\\*/){2}", re.IGNORECASE)  # JSON may have \/
_URL_END = re.compile(r"[\s\"'<>`]|\\[\"'n]|$")
_AUTHORITY_END = re.compile(r"[/?#]|$")
_PORT = re.compile(r"[^:]*(?::\d*)?|\[[^]]*\](?::\d*)?")
_SCHEME_OF_HEADER = re.compile(r"\b(Bearer|Basic)(\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_BARE_USER = re.compile(
    r"(?<![\w/:.@+-])(?!mailto:)[\w.+-]+:[^\s/@:\"',]+@(?!sha\d+:)"
    r"(?=[\w-]+(?:\.[\w-]+)+|localhost|[\w-]+(?::\d+\b|/))"
)
_USER_OF_OPTION = re.compile(  # of curl and the like, also as elements of a list
    r"(?<![^\s\"'=(\[,])(-[uU]|--(?:proxy-)?user|--login)((?:\s+|=|[\"']\s*,\s*)[\"']?)"
    r"([\w.@+-]+):(?!\d+(?:[\s:\"']|$))[^\s\"',]+"
)
_USER_OPTION = re.compile(r"-[uU]|--(?:proxy-)?user|--login")
_USER_AND_PASSWORD = re.compile(r"([\w.@+-]+):(?!\d+(?:\s|:|$)).+", re.DOTALL)
_LOGIN = re.compile(r"--?(?:[\w.-]*[-_.])?login", re.IGNORECASE)
_LOGIN_SHELL = re.compile(r"(?:.*/)?(?:(?:ba|da|fi|k|z)?sh|su|sudo)", re.DOTALL)
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish", "su", "sudo")  # bash --login has no user
_NOT_OF_SHELL = "".join(rf"(?<![\s/\"'(;&|]{shell} )(?<!\A{shell} )" for shell in _SHELLS)
_PAIR_OPTION = (
    rf"(?<![^\s\"'])(?:{_NOT_OF_SHELL}--?(?i:login)|--?(?:(?i:(?:[\w.-]{{0,60}}[-_.])?"
    r"(?:auth|authorization|creds?|credentials?)|\w[\w.-]{0,60}[-_.]login)"
    r"|[\w.-]{0,60}[a-z](?:Auth|Creds?|Login)))"
)
_SHELL_WORD = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'|;&<>-][^\s\"']*)"
_ELEMENT = r"(?!-)(?:(?!\2).)+"
_PASSWORDS_OF_PAIRS = (  # as words, and as elements of a list
    re.compile(rf"({_PAIR_OPTION}[ \t]+{_SHELL_WORD}[ \t]+){_SHELL_WORD}"),
    re.compile(rf"({_PAIR_OPTION}(\\*[\"'])\s*,\s*\2{_ELEMENT}\2\s*,\s*\2){_ELEMENT}(?=\2)"),
)
_NETRC = re.compile(r"(\blogin\s+[^\s]{1,200}\s+password\s+)\S+")
_DATABASE_CLIENT = r"(?:mysql|mariadb)[\w-]*|sshpass|redis-cli"
_ITS_LETTER = r"(?:-[pa])"  # one of these programs' options that have a password after them
_PROGRAM = re.compile(rf"(?:.*/)?(?:{_DATABASE_CLIENT})", re.DOTALL)
_LETTER_AND_PASSWORD = re.compile(rf"{_ITS_LETTER}(.+)", re.DOTALL)
_PASSWORD_OF_PROGRAM = re.compile(
    rf"((?<![\w.-])(?:{_DATABASE_CLIENT})\s[^|;&\n]{{0,300}}?(?<=\s){_ITS_LETTER}[ \t]?)(?=[^\s-])"
    r"(?:\"[^\"]*\"|'[^']*'|\S+)"
)


def redact_text(text: str, *, is_code: bool = False) -> str:
    """Return a text with the secrets in it hidden, wherever in it they stand.

    In code, only literals are values.
    """
    return _redacted_text(text, is_code=is_code, levels=_LEVELS_OF_QUOTING)


def _redacted_text(text: str, *, is_code: bool, levels: int) -> str:
    text = _KNOWN_FORMS.sub(HIDDEN, _BARE_USER.sub("", _without_url_secrets(text)))
    text = _SCHEME_OF_HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _USER_OF_OPTION.sub(rf"\1\2\3:{HIDDEN}", _NETRC.sub(rf"\1{HIDDEN}", text))
    for pattern in (_PASSWORD_OF_PROGRAM, *_PASSWORDS_OF_PAIRS):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    for names in _NAMES_IN_CODE if is_code else _NAMES_IN_TEXT:
        text = _without_named_secrets(text, names, is_code=is_code)
    if levels and "%" in text:
        text = _WORD_OF_URL.sub(lambda word: _without_quoted_secrets(word[0], levels), text)
    return text


_LEVELS_OF_QUOTING = 3  # a URL in a URL in a URL
_WORD_OF_URL = re.compile(r"[^\s\"'<>`\\]+")
_QUOTED_CHARACTER = re.compile(r"%[0-9A-Fa-f]{2}")
_SAFE_CHARACTERS = "/:?&=@*,;+$!#[]()~"


def _without_quoted_secrets(word: str, levels: int) -> str:
    """Return a word with what is a secret once it is unquoted hidden, as `token%3Dx` in a URL."""
    if _QUOTED_CHARACTER.search(word) is None:
        return word
    unquoted = unquote(word)
    shown = _redacted_text(unquoted, is_code=False, levels=levels - 1)
    return word if shown == unquoted else quote(shown, safe=_SAFE_CHARACTERS)


_SOURCE_OF_FRAME = re.compile(r"\s+File \".*\", line \d+")


_SHORTEST_KNOWN = 8  # characters; "true" may stand anywhere


def hide_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return a text without the values of those variables that have names of secrets.

    An error quotes a token that it was given, in whichever form, and says nothing of what it is.
    """
    values = {
        value.strip()
        for name, value in variables.items()
        if is_secret(name, value) and len(value.strip()) >= _SHORTEST_KNOWN
    }
    for value in sorted(values, key=len, reverse=True):
        if value.startswith("/") and os.path.lexists(value):  # of SSH_AUTH_SOCK, say
            continue
        for form in (value, quote(value, safe=""), quote(value), quote_plus(value)):
            text = text.replace(form, HIDDEN)
    return text


def redact_traceback(text: str) -> str:
    """Return a traceback, or lines of a log, with secrets hidden: of code only in its literals."""
    lines, is_code = [], False
    for line in text.splitlines(keepends=True):
        lines.append(redact_text(line, is_code=is_code))
        is_code = _SOURCE_OF_FRAME.match(line) is not None
    return "".join(lines)


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a command line's arguments with secrets hidden.

    Those are what `redact_text` finds in an argument, the whole value of an option or assignment
    with the name of a secret (`API_KEY=X`, `--set API_KEY=X`), and the argument after such an
    option (`--api-key X`). After the name of several secrets (`--api-keys X Y`), or of a user with
    a password (`--auth USER X`, `--login USER X`, whose user stays), those are all arguments up to
    the next option; an argument of the script's own among them is hidden, too. After the name of
    one secret it stays (`--token X data/`).
    """
    redacted: list[str] = []
    option, takes_password = "", False
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if option and _is_value(argument) and is_secret(option, argument):
            redacted.append(HIDDEN)
            option = option if _takes_several(option) else ""
            continue
        takes_password = takes_password or _PROGRAM.fullmatch(argument) is not None
        both = argument if argument.startswith("-") else f"{option}{argument}"  # -pX, or -p X
        if takes_password and (given := _LETTER_AND_PASSWORD.fullmatch(both)):
            redacted.append(argument.replace(given[1], HIDDEN))
            option = ""
            continue
        if _USER_OPTION.fullmatch(option) and (user := _USER_AND_PASSWORD.fullmatch(argument)):
            argument = f"{user[1]}:{HIDDEN}"  # noqa: PLW2901 - what it counts as
        redacted.append(_redacted_argument(argument))
        is_option = argument.startswith("-") and "=" not in argument and " " not in argument
        following = _AFTER_LOGIN if _LOGIN.fullmatch(option) else ""
        option = argument if is_option else following
        if _LOGIN.fullmatch(option) and _LOGIN_SHELL.fullmatch(before):  # no user: bash --login
            option = ""
    return tuple(redacted)


_AFTER_LOGIN = "--login-credentials"
"""The option whose values those after the user of `--login` are taken for."""
_PAIR_WORDS = {"auth", "authorization", "cred", "credential"}


def _takes_several(option: str) -> bool:
    """Whether several values may follow an option: its name is a plural's, or that of a pair."""
    words = _WORD.findall(option)
    return option.lower().endswith("s") or (bool(words) and words[-1].lower() in _PAIR_WORDS)


_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(?:=.*)?|--?", re.DOTALL)


def _is_value(argument: str) -> bool:
    """Whether a word after an option is its value: passwords may begin with a dash, too."""
    return _OPTION.fullmatch(argument) is None or _RANDOM.fullmatch(argument) is not None


def hide_secrets(value: Any, name: str = "") -> Any:
    """Return a JSON value with secrets hidden, by the names of fields and within texts.

    The name of a secret holds for all that is in it, and may itself be a value, as Kubernetes has
    variables: {"name": "HF_TOKEN", "value": "x"}.
    """
    if isinstance(value, dict):
        fields = {str(key).lower(): each for key, each in value.items()}
        of_value = next((str(fields[key]) for key in ("name", "key") if key in fields), "")
        return {
            key: hide_secrets(each, _closest_name(name, str(key), of_value))
            for key, each in value.items()
        }
    if isinstance(value, list):
        if not is_secret(name) and all(isinstance(each, str | int | float) for each in value):
            shown = redact([str(each) for each in value])  # it may be a command line
            if len(shown) == len(value):
                pairs = zip(value, shown, strict=True)
                return [each if str(each) == text else text for each, text in pairs]
            return list(shown)
        return [hide_secrets(each, name) for each in value]
    if name and is_secret(name, None if value is None else str(value)):
        return value if value is None or isinstance(value, bool) else HIDDEN
    return _redacted_argument(value) if isinstance(value, str) else value


def shown_value(value: Any, name: str = "") -> str:
    """Return a value as a message quotes it, with the secrets in it hidden; all of it by a name."""
    return redact_text(repr(hide_secrets(value, name)))


def _closest_name(outer: str, key: str, of_value: str) -> str:
    """Return the name that a field's value goes by: that of a secret, if it has one."""
    names = [key, of_value if key.lower() == "value" else "", outer]
    return next((name for name in names if name and is_secret(name)), key)


_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[\w.+-]+)=(?P<value>.*)", re.DOTALL)


def _redacted_argument(argument: str) -> str:
    before, value = "", argument
    while assigned := _ASSIGNMENT.fullmatch(value):  # the value may be an assignment, too
        if _REQUIREMENT.match(value):
            break
        before, value = f"{before}{assigned['name']}=", assigned["value"]
        if is_secret(assigned["name"], value):
            return before + HIDDEN
    return before + redact_text(value)


_NAME = r"(?P<name>(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*)"
_QUOTED_NAME = r"(?P<quote>(?<!\\)\\*[\"'])(?P<name>[A-Za-z_][\w.-]*)(?P=quote)"
_VALUE_OF_NAME = re.compile(  # {"name": "x", "value": ...}, <add key="x" value=...>
    rf"\b(?:name|key)(?:\\*[\"'])?\s*[:=]\s*{_QUOTED_NAME}"
    r"[\s,;]*(?P<sign>(?:\\*[\"'])?)value(?:\\*[\"'])?\s*[:=]\s*",
    re.IGNORECASE,
)
_SETTER = re.compile(rf"(?:set|get|put)\w{{0,30}}\(\s*{_QUOTED_NAME}\s*,\s*", re.IGNORECASE)
_QUOTED_OPTION = r"(?P<quote>(?<!\\)\\*[\"'])(?P<name>--?[A-Za-z][\w.-]*)(?P=quote)"
_OPTION_IN_LIST = re.compile(rf"{_QUOTED_OPTION}\s*,\s*(?=\\*[\"'](?!-))")  # ["--token", "x"]
_PAIR = re.compile(rf"\(\s*[bu]?{_QUOTED_NAME}\s*,\s*(?=[bu]?\\*[\"'])")  # ('token', 'x')
_DEFAULT_OF_OPTION = re.compile(rf"{_QUOTED_OPTION}[^()\n]*?\bdefault\s*=\s*")  # of argparse, click
_NAMES_IN_TEXT = (
    re.compile(rf"{_NAME}(?P<sign>\\*[\"']?\]?\s*(?:=>|[:=]=?)\s*)"),
    re.compile(r"(?<![^\s\"'])(?P<name>--?[A-Za-z][\w.-]*)\s+(?!-)"),
    re.compile(r"<(?P<name>[A-Za-z_][\w:.-]*)(?:\s[^<>]*)?>(?=[^<]+</(?P=name)>)"),
    _VALUE_OF_NAME,
    _SETTER,
    _OPTION_IN_LIST,
    _PAIR,
)
"""Names, up to where their values begin."""
_ANNOTATION = r"(?:\s*:\s*[\w.\[\]| ]+?(?=\s*=))?"
_NAMES_IN_CODE = (
    re.compile(rf"{_NAME}{_ANNOTATION}(?P<sign>[\"']?\]?\s*(?:[:=!]=|[:=])\s*)"),
    re.compile(rf"{_QUOTED_NAME}\s*,\s*"),
    _VALUE_OF_NAME,
    _SETTER,
    _OPTION_IN_LIST,
    _DEFAULT_OF_OPTION,
)


_REQUIREMENT = re.compile(
    r"[\w.-]+\s*==\s*\d+(?:\.\d+)+(?:\.?(?:a|b|rc|post|dev)\d*)*(?![^\s,;)\]\"'])"
)
"""A package and its version: google-auth==2.30.0."""


class _Value(NamedTuple):
    """A value in a text: where it is, its parts that may be secrets, and how it is shown then."""

    start: int
    stop: int
    parts: tuple[str, ...]
    hidden: str
    is_key: bool = False  # of a header whose name says so


def _without_named_secrets(text: str, names: re.Pattern[str], *, is_code: bool) -> str:
    """Return a text without the values that follow the names of secrets."""
    pieces, end, place = [], 0, 0
    while found := names.search(text, place):
        place = found.end()  # there may be one in the value of another name
        if not _suggests_secret(found["name"]) or _REQUIREMENT.match(text, found.start()):
            continue
        value = _value_after(text, found, is_code=is_code)
        if value is None or all(part in ("", HIDDEN) for part in value.parts):
            continue
        if value.is_key or any(is_secret(found["name"], part) for part in value.parts):
            pieces += [text[end : value.start], value.hidden]
            end = place = value.stop
    return "".join((*pieces, text[end:]))


_OPENING_QUOTE = re.compile(r"[rbfuRBFU]{0,2}(\\*(?:\"\"\"|'''|[\"']))")
_RUN = re.compile(r"[^\s,;&}\])\"'\\<]+(?:[,;&](?![\w.+-]+\\*[\"']?\s*[:=])[^\s,;&}\])\"'\\<]+)*")
"""A value without quotes: "password=a,b" has one, "password=a,lr=1" two."""
_HEADER_NAME = re.compile(r"[\w-]*authorization|(?:set-)?cookie|[a-z]+(?:-\w+)+", re.IGNORECASE)
_HEADER_OF_KEY = re.compile(r"x-[\w-]*key", re.IGNORECASE)  # whatever the key looks like
_HEADER_VALUE = re.compile(r"(?:=\\*\"[^\"\r\n]*\"|[^\r\n\"'\\])+")


_CALLED = re.compile(r"[A-Za-z_][\w.]{0,100}(?=\()")  # HTTPBasicAuth('user', 'x')
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def _value_after(text: str, found: re.Match[str], *, is_code: bool) -> _Value | None:
    """Return the value that follows a name; None where there is none."""
    start = found.end()
    if opened := _OPENING_QUOTE.match(text, start):
        stop, closed = _closing(text, opened.end(), opened[1])
        inside = text[opened.end() : stop]
        return _Value(start, stop + len(closed), (inside,), f"{opened[0]}{HIDDEN}{closed}")
    if (header := _header_value(text, found)) is not None:
        return header
    called = _CALLED.match(text, start)
    bracket = start if called is None else called.end()
    if text.startswith(("[", "{", "("), bracket):
        return _bracketed(text, found, bracket, is_code=is_code)
    if not is_code and (block := _yaml_block(text, found)) is not None:
        return block
    run = None if is_code else _RUN.match(text, start)
    return None if run is None else _Value(start, run.end(), (run[0],), HIDDEN)


_BLOCK_BEGIN = re.compile(r"[|>][-+\d]{0,2}[ \t]*(?:#[^\n]*)?\n")
_BLOCK_LINE = re.compile(r"([ \t]*)([^\n]*)(?:\n|\Z)")


def _yaml_block(text: str, found: re.Match[str]) -> _Value | None:
    """Return the lines that follow `name: |`, which are indented more than the name is."""
    begin = _BLOCK_BEGIN.match(text, found.end())
    if begin is None:
        return None
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    outer = len(line) - len(line.lstrip(" \t-\"'"))
    stop = begin.end()
    while stop < len(text) and (inner := _BLOCK_LINE.match(text, stop)) is not None:
        if inner[2] and len(inner[1]) <= outer:
            break
        stop = inner.end()
    inside = text[begin.end() : stop]
    indent = inside[: len(inside) - len(inside.lstrip())].rpartition("\n")[2]
    newline = "\n" if inside.endswith("\n") else ""
    return _Value(begin.end(), stop, (inside.strip(),), f"{indent}{HIDDEN}{newline}")


def _header_value(text: str, found: re.Match[str]) -> _Value | None:
    """Return the value of a header, `Name: value`, which ends with its line or its quote."""
    sign, start = found.groupdict().get("sign") or "", found.end()
    is_authorization = found["name"].lower().endswith("authorization")
    if sign.strip() != ":" and not (is_authorization and sign == "="):
        return None
    if _HEADER_NAME.fullmatch(found["name"]) is None:
        return None
    is_key = _HEADER_OF_KEY.fullmatch(found["name"]) is not None
    before = re.search(r"\\*[\"']\Z", text[max(0, found.start() - 8) : found.start()])
    if before is not None:
        stop, _ = _closing(text, start, before[0])
        return _Value(start, stop, (text[start:stop],), HIDDEN, is_key)
    value = _HEADER_VALUE.match(text, start)
    return None if value is None else _Value(start, value.end(), (value[0],), HIDDEN, is_key)


_BRACKETS = re.compile(r"(?P<quote>(?<!\\)\\*[\"'])|(?P<open>[\[({])|(?P<close>[\])}])")
_LONGEST_IN_CODE = 1000  # characters of a list
_PART = re.compile(r"\\*[\"']([^\"'\\]*)(?:\\*[\"'])?|([^\s\[\](){},:\"'\\]+)")
_LITERAL = re.compile(r"([\"'])((?:\\.|(?!\1).)*)\1(?!\s*:)", re.DOTALL)


def _bracketed(text: str, found: re.Match[str], bracket: int, *, is_code: bool) -> _Value:
    """Return a list, a call or the like as one value; in code, its literals are hidden alone."""
    start, place, depth = found.end(), bracket, 0
    stop = min(len(text), start + _LONGEST_IN_CODE) if is_code else len(text)
    while token := _BRACKETS.search(text, place, stop):
        place = token.end()
        if token["quote"]:
            inside, closed = _closing(text, place, token["quote"])
            place = inside + len(closed)
        else:
            depth += 1 if token["open"] else -1
        if depth == 0:
            stop = place
            break
    content = text[start:stop]
    if is_code:
        literals = tuple(each[2] for each in _LITERAL.finditer(content))
        return _Value(start, stop, literals, _LITERAL.sub(_hidden_literal, content))
    quotes = re.search(r"\\*[\"']", found.groupdict().get("sign") or "")
    quote = quotes[0] if quotes else ""
    parts = tuple("".join(each) for each in _PART.findall(content))
    return _Value(start, stop, parts, f"{quote}{HIDDEN}{quote}")


def _hidden_literal(literal: re.Match[str]) -> str:
    """Return a literal hidden, unless it names a variable: `os.getenv("HF_TOKEN")`."""
    return literal[0] if _VARIABLE.fullmatch(literal[2]) else f"{literal[1]}{HIDDEN}{literal[1]}"


def _closing(text: str, start: int, quote: str) -> tuple[int, str]:
    r"""Return where a quoted text ends, and the quote that ends it; "" where its line does.

    In a quoted text a quote is escaped by a backslash, in one within another by three (\\\").
    """
    sign = quote.lstrip("\\")
    depth = len(quote) - len(sign)
    for found in _quotes(sign).finditer(text, start):
        escapes = len(found[1])
        if escapes < depth:  # the text around it ends
            return found.start(), ""
        if (escapes - depth) % (2 * (depth + 1)) == 0:
            return found.end() - len(quote), quote
    if (plain := text.find(quote, start)) >= 0:  # not all that quote know of escapes
        return plain, quote
    end = text.find("\n", start)
    return (len(text) if end < 0 else end), ""


@cache
def _quotes(sign: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\\)(\\*){re.escape(sign)}")


def _without_url_secrets(text: str) -> str:
    """Return a text whose URLs have no user and no query."""
    pieces, end = [], 0
    schemes = list(_SCHEME.finditer(text))
    for number, scheme in enumerate(schemes):
        pieces.append(text[end : scheme.end()])
        following = schemes[number + 1].start() if number + 1 < len(schemes) else len(text)
        stop = _URL_END.search(text, scheme.end(), following)
        end = following if stop is None else stop.start()
        rest = _without_user_and_query(text[scheme.end() : end])
        pieces.append(_without_path_secrets(rest) if _WEB_SCHEME.match(scheme[0]) else rest)
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


_WEB_SCHEME = re.compile(r"(?:https?|wss?):", re.IGNORECASE)  # a bucket's keys are no hooks
_WEB_PATH_END = re.compile(r"[,;)\]}]|$")  # of a URL in a list or in a sentence
_SLASH = re.compile(r"(\\*/)")
_HOOK_HOST = re.compile(
    r"(?:(?:.*\.)?(?:web)?hooks?(?:\..*)?|hc-ping\.com|cronitor\.link)(?::\d+)?", re.IGNORECASE
)
"""Hosts with nothing but hooks: hooks.zapier.com, hook.eu1.make.com, acme.webhook.office.com."""
_HOOK_SEGMENT = re.compile(
    r"(?:(?:build|deploy|incoming)[-_]?)?(?:web)?hooks?(?:b\d)?|integrations?|ping|heartbeat|x-ere"
    r"|(?:(?:access|api|auth|routing|service)[-_]?)?(?:key|token)s?|secrets?",
    re.IGNORECASE,
)
"""Whole parts of a path after which secrets may come: not webhooks-demo, nor keyframes."""
_KEY_SEGMENT = re.compile(
    r"(?!.*\.(?:[A-Za-z]{1,11}|\w{2,3})\Z)"
    r"(?:[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}.*"
    r"|(?=.*(?:[A-Za-z]\d+[A-Za-z]+\d|\d[A-Za-z]+\d+[A-Za-z])).{8,})",
    re.IGNORECASE,
)
"""A part of a path as keys are: letters and digits alternate, as in no word; a file's is none."""
_INDEX_HOST = re.compile(
    r"(?:.*\.)?(?:anaconda\.(?:com|org)|cloudsmith\.io|fury\.io|packagecloud\.io)(?::\d+)?",
    re.IGNORECASE,
)
"""Hosts of packages whose URLs, also those of files, may hold the key of their reader."""
_INDEX = "simple"  # the part of a path that makes it a package index's, for PEP 503


def _without_path_secrets(rest: str) -> str:
    """Return what follows `https://` in a URL without the keys in a hook's or an index's path."""
    path_end = _WEB_PATH_END.search(rest, rest.find("/") + 1)  # the host may be [::1]
    end = path_end.start() if path_end else len(rest)
    host, *path = _SLASH.split(rest[:end])  # slashes and what is between them
    if _HOOK_HOST.fullmatch(host) and any(path[1::2]):
        return f"{host}{path[0]}{HIDDEN}{rest[end:]}"
    shown, is_hook = [host], False
    of_index = path.index(_INDEX) if _INDEX in path else 0
    if _INDEX_HOST.fullmatch(host):
        of_index = len(path)
    for number, part in enumerate(path):
        may_hold_key = is_hook or number < of_index
        shown.append(HIDDEN if may_hold_key and _KEY_SEGMENT.fullmatch(part) else part)
        is_hook = is_hook or _HOOK_SEGMENT.fullmatch(part) is not None
    return "".join((*shown, rest[end:]))
