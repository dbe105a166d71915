"""Options of a job: dataclass fields with a flag, a help text, and a value written as texts.

A field that is made by `option` is all that a new option needs. The command line, its help, job
files, the Estimator, the dry run and docs/options.md are derived from it. As texts, by option name,
an option travels to the launcher's child processes and to the job's hosts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar

from headrace.core.errors import UsageError, choices_hint

Panel = Literal["Common", "Run", "Recording", "Data", "Platform", "Cluster", "Outputs"]
Texts = Mapping[str, Sequence[str]]
"""The values of options as typed, by option name."""
_KEY = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the texts of an option become its value, and the value texts again.

    Attributes:
        parse: Returns the value of texts that follow a flag, given both; raises UsageError.
        texts: Returns texts of which `parse` makes an equal value.
        repeats: The flag may be given several times.
        is_switch: The flag takes no value.
        expects: What job files and the Estimator may give, as their error messages say it.
        takes_numbers: They may give it as a number, too.
    """

    parse: Callable[[Sequence[str], str], Any]
    texts: Callable[[Any], Iterable[str]]
    repeats: bool = False
    is_switch: bool = False
    expects: str = "a text"
    takes_numbers: bool = False


def last_text(texts: Sequence[str], flag: str) -> str:  # noqa: ARG001 - a Kind's parse
    """Return the last text: a flag that is given again replaces the value before."""
    return texts[-1]


TEXT = Kind(parse=last_text, texts=lambda value: [value])
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
        if texts[-1] not in known:
            raise UsageError(f"{flag} {texts[-1]}{choices_hint(texts[-1], known)}")
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
                raise UsageError(f"{flag} {each}: write it as {flag} NAME={what}.")
            if name in found:
                raise UsageError(f"{flag} {name}=... is given twice: name each once.")
            found[name] = parse(name, value)
        return found

    return Kind(
        parse=parse_all,
        texts=lambda values: [f"{name}={text(value)}" for name, value in values.items()],
        repeats=True,
        expects="values by names",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a job.

    Attributes:
        name: Its name in command lines (`max_run` is --max-run) and in texts.
        panel: The panel of the help that lists it.
        kind: How texts become its value.
        argument: Its name in job files and of the Estimator's argument; None: it has none.
        needs_torchrun: It concerns ranks or several hosts, so torchrun starts the script.
    """

    name: str
    field: str
    panel: Panel
    help: str
    kind: Kind
    argument: str | None
    needs_torchrun: bool

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
    name: str, kind: Kind, panel: Panel, help: str, *, default: Any = MISSING,  # noqa: A002
    default_factory: Any = MISSING, argument: str | None = "",
    needs_torchrun: bool = False,
) -> Any:  # fmt: skip
    """Return a dataclass field that is an option of a job; see `Option`.

    Args:
        name: The option's name.
        argument: "": the option's name.
        needs_torchrun: See `Option`.
    """
    found = Option(
        name=name, field="", panel=panel, help=help, kind=kind,
        argument=name if argument == "" else argument, needs_torchrun=needs_torchrun,
    )  # fmt: skip
    return field(default=default, default_factory=default_factory, metadata={_KEY: found})


class OptionGroup:
    """A frozen dataclass whose fields are options."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def checked(self) -> Self:
        """Return the options if they fit together; raises UsageError."""
        return self


_Group = TypeVar("_Group", bound=OptionGroup)


def options_of(group: type[OptionGroup]) -> list[Option]:
    """Return the options that are fields of a dataclass."""
    fields = dataclasses.fields(group)
    return [
        dataclasses.replace(each.metadata[_KEY], field=each.name)
        for each in fields
        if _KEY in each.metadata
    ]


def parse_options(group: type[_Group], texts: Texts) -> _Group:
    """Return a group of options whose values are given as texts.

    Raises:
        UsageError: An invalid value, or values that exclude each other.
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


def argument_texts(found: Option, value: Any, where: str) -> list[str]:
    """Return the texts of a value that a job file or the Estimator gives; raises UsageError."""
    kind = found.kind
    if kind.is_switch and isinstance(value, bool):
        return ["true"] if value else []
    if kind.repeats and isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    if kind.repeats and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [str(each) for each in value]
    if isinstance(value, str) and value and not kind.is_switch:
        return [value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and kind.takes_numbers:
        return [str(value)]
    raise UsageError(f"{where}{found.argument}: {value!r} is not {kind.expects}.")
