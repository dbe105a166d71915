"""Patterns that take a path apart and put it together again.

`*` stands for one or more characters within one path component, `**` for one or more of any. What
the wildcards match, joined by "/", is the stem: the part that an image and its mask share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from headrace.core.errors import UsageError

_WILDCARD = re.compile(r"(\*+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glob:
    """One pattern.

    Attributes:
        pattern: As written.
        literals: The text around the wildcards, one more than there are wildcards.
        wildcards: "*" or "**", in order; "**" at most once.
        regex: What a whole path must match; one group a wildcard.
    """

    pattern: str
    literals: tuple[str, ...]
    wildcards: tuple[str, ...]
    regex: re.Pattern[str]

    @classmethod
    def parse(cls, pattern: str) -> Self:
        """Read a pattern; raises UsageError where it has no wildcard, or "**" twice."""
        pieces = _WILDCARD.split(pattern.removeprefix("./"))
        literals, wildcards = tuple(pieces[::2]), tuple(pieces[1::2])
        if not wildcards or any(len(wildcard) > 2 for wildcard in wildcards):
            raise UsageError(
                f"pattern {pattern!r}: use '*' for part of a name and '**' for several folders, as "
                "in 'images/*.jpg'."
            )
        if wildcards.count("**") > 1:
            raise UsageError(f"pattern {pattern!r}: '**' may stand there once.")
        if any(left == "" for left in literals[1:-1]):
            raise UsageError(f"pattern {pattern!r}: wildcards need text between them.")
        groups = ["(.+)" if wildcard == "**" else "([^/]+)" for wildcard in wildcards]
        text = re.escape(literals[0]) + "".join(
            group + re.escape(literal) for group, literal in zip(groups, literals[1:], strict=True)
        )
        regex = re.compile(text, re.DOTALL)
        return cls(pattern=pattern, literals=literals, wildcards=wildcards, regex=regex)

    @property
    def folder(self) -> str:
        """The deepest folder that all matches lie in, without a slash at its end; "" for all."""
        return self.literals[0].rpartition("/")[0]

    def match(self, path: str) -> str | None:
        """Return the stem of a path, or None where the path does not match."""
        match = self.regex.fullmatch(path)
        return "/".join(match.groups()) if match else None

    def expand(self, stem: str) -> str:
        """Return the path with this stem: the inverse of `match`."""
        parts = self._split(stem)
        return self.literals[0] + "".join(
            part + literal for part, literal in zip(parts, self.literals[1:], strict=True)
        )

    def _split(self, stem: str) -> list[str]:
        parts = stem.split("/")
        if "**" not in self.wildcards:
            return parts
        left = self.wildcards.index("**")
        right = len(parts) - (len(self.wildcards) - left - 1)
        return [*parts[:left], "/".join(parts[left:right]), *parts[right:]]
