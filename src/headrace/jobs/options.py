"""Options of a job: dataclass fields with a flag, a help text, and a value written as texts.

A field that is made by `option` is all that a new option needs. The command line, its help, job
files, the Estimator, the dry run and docs/options.md are derived from it. As texts, by option name,
an option travels to the launcher's child processes and to the job's hosts. The parsers and checks
of single options' texts stand at the end.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from headrace.core import env
from headrace.core.errors import UsageError, check_choices, choices_hint
from headrace.core.units import parse_seconds
from headrace.platforms.script_contract import ContractName
from headrace.records.layout import STEP_GROUP
from headrace.records.redaction import redact_text, shown_value

Panel = Literal["Common", "Run", "Recording", "Data", "Platform", "Cluster", "Outputs"]
Texts = Mapping[str, Sequence[str]]
"""The values of options as typed, by option name."""
_KEY = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the texts of an option become its value, and the value texts again."""

    # Returns the value of texts that follow a flag, given both; raises UsageError
    parse: Callable[[Sequence[str], str], Any]
    texts: Callable[[Any], Iterable[str]]  # returns texts of which `parse` makes an equal value
    repeats: bool = False  # the flag may be given several times
    is_by_name: bool = False  # each text is NAME=VALUE
    is_switch: bool = False  # the flag takes no value
    # What job files and the Estimator may give, as their error messages say it
    expects: str = "a text"
    takes_numbers: bool = False  # they may give it as a number, too


def _parse_text(texts: Sequence[str], flag: str) -> str:
    """Return the last text, as a flag that is given again replaces the value before."""
    if not texts[-1]:  # of a variable that is not set, as in --source-dir=$CODE
        raise UsageError(f"{flag} is empty: give a value, or leave the flag out.")
    return texts[-1]


TEXT = Kind(parse=_parse_text, texts=lambda value: [value])
SWITCH = Kind(
    parse=lambda _texts, _flag: True,
    texts=lambda value: ["true"] if value else [],
    is_switch=True,
    expects="true or false",
)


def number(least: int) -> Kind:
    """Return the kind of a whole number, `least` or more."""

    def parse(texts: Sequence[str], flag: str) -> int:
        try:
            value = int(texts[-1])
        except ValueError:
            value = least - 1
        if value < least:
            raise UsageError(f"{flag} {texts[-1]}: give a whole number, {least} or more.")
        return value

    return Kind(
        parse=parse, texts=lambda value: [str(value)], expects="a whole number", takes_numbers=True
    )


def choice(known: Sequence[str]) -> Kind:
    """Return the kind of one text out of several."""

    def parse(texts: Sequence[str], flag: str) -> str:
        check_choices([texts[-1]], known, f"{flag} ")
        return texts[-1]

    return Kind(parse=parse, texts=lambda value: [value])


def parsed(
    parse: Callable[[str], Any],
    text: Callable[[Any], str] = str,
    *,
    expects: str = "a text",
    takes_numbers: bool = False,
) -> Kind:
    """Return the kind of a value that a function reads from one text."""
    return Kind(
        parse=lambda texts, _flag: parse(texts[-1]),
        texts=lambda value: [text(value)],
        expects=expects,
        takes_numbers=takes_numbers,
    )


def pairs(
    what: str,
    parse: Callable[[str, str], Any] = lambda _name, text: text,
    text: Callable[[Any], str] = str,
) -> Kind:
    """Return the kind of values by name, each given as NAME=VALUE; messages call VALUE `what`."""

    def parse_all(texts: Sequence[str], flag: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in texts:
            name, equals, value = each.partition("=")
            if not equals or not name:
                raise UsageError(f"{flag} {redact_text(each)}: write it as {flag} NAME={what}.")
            if name in found:
                raise UsageError(f"{flag} {name}=... is given twice: name each once.")
            found[name] = parse(name, value)
        return found

    return Kind(
        parse=parse_all,
        texts=lambda values: [f"{name}={text(value)}" for name, value in values.items()],
        repeats=True,
        is_by_name=True,
        expects="values by names",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a job."""

    name: str  # its name in command lines (`max_run` is --max-run) and in texts
    field: str
    panel: Panel  # the panel of the help that lists it
    help: str
    kind: Kind  # how texts become its value
    argument: str | None  # its name in job files and of the Estimator's argument; None: it has none
    needs_torchrun: bool  # it concerns ranks or several hosts, so torchrun starts the script

    @property
    def flag(self) -> str:
        """The flag, such as --max-run."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flag with hyphens and, as torchrun takes its own flags too, with underscores."""
        return tuple(dict.fromkeys((self.flag, f"--{self.name}")))

    def flags(self, texts: Iterable[str]) -> list[str]:
        """Return the flags that give these texts."""
        if self.kind.is_switch:
            return [self.flag for _ in texts]
        return [f"{self.flag}={text}" for text in texts]


def option(
    name: str, kind: Kind, panel: Panel, help: str, *, default: Any = None,  # noqa: A002
    default_factory: Any = None, argument: str | None = "", needs_torchrun: bool = False,
) -> Any:  # fmt: skip
    """Return a dataclass field that is an option of a job; see `Option`.

    Without a default it is None, and False for a switch; the argument is called like the option.
    """
    found = Option(
        name=name, field="", panel=panel, help=help, kind=kind,
        argument=name if argument == "" else argument, needs_torchrun=needs_torchrun,
    )  # fmt: skip
    if default_factory is not None:
        return field(default_factory=default_factory, metadata={_KEY: found})
    return field(
        default=False if kind.is_switch and default is None else default, metadata={_KEY: found}
    )


class OptionGroup:
    """A frozen dataclass whose fields are options."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    needs_torchrun: ClassVar[bool] = False  # whether all of its options do; see `Option`

    def checked(self) -> Self:
        """Return the options if they fit together; raises UsageError."""
        return self


_Group = TypeVar("_Group", bound=OptionGroup)


def options_of(group: type[OptionGroup]) -> list[Option]:
    """Return the options that are fields of a dataclass."""
    found = {
        each.name: each.metadata[_KEY]
        for each in dataclasses.fields(group)
        if _KEY in each.metadata
    }
    return [
        dataclasses.replace(
            each, field=name, needs_torchrun=each.needs_torchrun or group.needs_torchrun
        )
        for name, each in found.items()
    ]


def parse_options(group: type[_Group], texts: Texts) -> _Group:
    """Return a group of options whose values are given as texts.

    Raises UsageError (an invalid value, or values that exclude each other).
    """
    values = {
        each.field: each.kind.parse(texts[each.name], each.flag)
        for each in options_of(group)
        if texts.get(each.name)
    }
    return group(**values).checked()


def option_texts(group: OptionGroup) -> dict[str, list[str]]:
    """Return the texts of a group's options that are not at their defaults."""
    defaults = type(group)()
    return {
        each.name: list(each.kind.texts(getattr(group, each.field)))
        for each in options_of(type(group))
        if getattr(group, each.field) != getattr(defaults, each.field)
    }


def is_list(value: object) -> bool:
    """Whether a value of a job file or the Estimator is a list, or a tuple."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def argument_texts(found: Option, value: Any, where: str) -> list[str]:
    """Return the texts of a value that a job file or the Estimator gives; raises UsageError."""
    kind = found.kind
    if kind.is_switch and isinstance(value, bool):
        return ["true"] if value else []
    if kind.repeats and kind.is_by_name and isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    if kind.repeats and is_list(value) and all(isinstance(each, str) for each in value):
        return list(value)
    if isinstance(value, str) and value and not kind.is_switch:
        return [value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and kind.takes_numbers:
        return [str(value)]
    shown = shown_value(value, found.argument or "")
    raise UsageError(f"{where}{found.argument}: {shown} is not {kind.expects}.")


_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.1, 60.0
_LONGEST_RUN_S = 100 * 365 * 24 * 3600.0  # clocks of the system do not count much further
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_max_run(text: str) -> float:
    """Parse the longest time of a job and return seconds; raises UsageError."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        limit_s = float(text)
    elif re.fullmatch(r"\s*\d+(\.\d+)?\s*h\s*", text):
        limit_s = float(text.strip().removesuffix("h")) * 3600
    else:
        try:
            limit_s = parse_seconds(text)
        except UsageError:
            limit_s = 0.0
    if not 0 < limit_s < _LONGEST_RUN_S:
        raise UsageError(f"--max-run {text}: it is no time. Write it as 3600 (seconds), 30min, 2h.")
    return limit_s


def check_variable_name(name: str, where: str) -> None:
    """Raise UsageError where a variable cannot have that name."""
    if not _VARIABLE_NAME.fullmatch(name):
        raise UsageError(
            f"{where}: a variable's name has letters, digits and '_'. Write it as --environment "
            "NAME=VALUE, in a job file as environment: {NAME: VALUE}."
        )


def parse_environment(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return variables by name; one without a value is inherited, and left out."""
    found: dict[str, str] = {}
    here = env.whole_environment()
    for text in texts:
        name, equals, value = text.partition("=")
        check_variable_name(name, f"{flag} {name}")
        if name in found:
            raise UsageError(f"{flag} {name}=... is given twice: name each once.")
        if equals:
            found[name] = value
        elif name not in here:  # else the script inherits it
            raise UsageError(
                f"{flag} {name}: it is not set here. Set it, or write {flag} {name}=VALUE."
            )
    return found


def parse_dependencies(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    """Return absolute paths; raises UsageError where there is no such file."""
    for path in texts:
        if not path or not Path(path).expanduser().exists():
            raise UsageError(f"{flag} {path}: there is no such file or folder in {Path.cwd()}.")
    return tuple(str(Path(path).expanduser().absolute()) for path in texts)


def parse_contracts(texts: Sequence[str], flag: str) -> tuple[ContractName, ...]:
    """Return the contracts of comma-separated names; raises UsageError."""
    known: tuple[ContractName, ...] = get_args(ContractName)
    found: list[ContractName] = []
    for text in ",".join(texts).split(","):
        name = next((each for each in known if each == text.strip()), None)
        if name is None:
            raise UsageError(f"{flag} {text}{choices_hint(text.strip(), known)}")
        if name not in found:
            found.append(name)
    if {"sagemaker", "sagemaker-v3"} <= set(found):
        raise UsageError(
            "--contract sagemaker and --contract sagemaker-v3: they spell the same variables "
            "differently. Give one; sagemaker has what SDK 3 adds, too."
        )
    return tuple(found)


def parse_hyperparameter(_name: str, text: str) -> Any:
    """Return a value parsed as JSON where it is JSON; otherwise the text."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    # 1.10 and 1e-3 reach the script as typed, not as 1.1 and 0.001.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and json.dumps(value) != text else value


def _refuse_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities are Python's, not JSON's


def hyperparameter_text(value: Any) -> str:
    """Return a hyperparameter as a flag's value: JSON where plain text is ambiguous."""
    if not isinstance(value, str):
        return json.dumps(value)
    return value if parse_hyperparameter("", value) is value else json.dumps(value)


def mode_texts(modes: Mapping[str, str]) -> list[str]:
    """Return input modes as texts: MODE for all channels, NAME=MODE for one."""
    return [f"{name}={mode}" if name else mode for name, mode in modes.items()]


def check_interval(interval: str) -> float:
    """Parse a sampling interval and return seconds; raises UsageError."""
    interval_s = parse_seconds(interval)
    if not _SHORTEST_INTERVAL_S <= interval_s <= _LONGEST_INTERVAL_S:
        raise UsageError(f"an interval of {interval}: give 100ms to 60s.")
    return interval_s


def check_metric(name: str, expression: str, where: str = "--metric") -> str:
    """Return a metric's expression; raises UsageError unless it has exactly one value group."""
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"{where} {name}: {expression!r} is no regular expression: {error}."
        ) from error
    values = compiled.groups - (STEP_GROUP in compiled.groupindex)
    if values != 1:
        raise UsageError(
            f"{where} {name}: {expression!r} has {values} groups, and one is the value: "
            r"loss: ([0-9.]+), say. A group (?P<step>...) beside it may tell the step."
        )
    return expression


def parse_sync_url(texts: Sequence[str], flag: str) -> str:
    """Return a URL that other processes can write to and read; raises UsageError."""
    url = texts[-1]
    if not url:
        raise UsageError(f"{flag} is empty: name a URL, such as s3://bucket/folder, or a folder.")
    from headrace.data.storage.urls import parse_url  # the Estimator needs no storage

    try:
        location = parse_url(url)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    if location.kind == "memory":
        raise UsageError(
            f"{flag} {location.url}: memory:// ends with the process that holds it. Name a folder, "
            "or a URL of a store."
        )
    if location.kind == "http":
        raise UsageError(
            f"{flag} {location.url}: a web server tells neither what it holds nor who was first, "
            "so nothing is kept there. Use s3://, gs://, az:// or a folder."
        )
    return url
