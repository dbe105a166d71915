"""How fast a core of a host type is: images decoded a second, measured or from a source.

`headrace cost calibrate` writes a row for the host it runs on; cpu_speeds.csv has some families
with their sources. Rates are compared only where they were measured in the same way.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError, check_choices
from headrace.core.file_lock import locked_file
from headrace.core.files import write_text_atomically

COLUMNS = ("InstanceType", "ImagesPerCore", "Cores", "Method", "Day", "Source")
CALIBRATED = "headrace cost calibrate"
"""The method of rates that Headrace has measured."""
_NEEDED = ("InstanceType", "ImagesPerCore")
_FAMILIES = Path(__file__).with_name("cpu_speeds.csv")
_LOCK_WAIT_S = 60.0
_CALIBRATED_DOUBT, _SOURCED_DOUBT = 1.05, 1.15
"""By what factor the speed of the run's own work may differ from that of decoding images, measured
on the hosts themselves, or on others of the family with one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSpeed:
    """Images that a core of a host decodes in a second."""

    images_per_s: float
    method: str
    source: str


class HostSpeeds:
    """The speeds that are known: those of the user's files, then those of families.

    Args:
        files: CSV files of the user's; None: those that HEADRACE_SPEEDS names.

    Raises:
        UsageError: A file cannot be read, or says what is no speed: with its name and line.
    """

    def __init__(self, files: Sequence[Path] | None = None) -> None:
        own = user_speed_files() if files is None else tuple(files)
        self._types: dict[str, CoreSpeed] = {}
        for file in own:
            for name, speed in _read_speeds(file):
                self._types.setdefault(name, speed)
        with _FAMILIES.open(newline="", encoding="utf-8") as file_of_families:
            self._families = {
                row["Family"]: _speed(row) for row in csv.DictReader(file_of_families)
            }

    def find(self, instance_type: str) -> CoreSpeed | None:
        """Return the speed of a type; None: it is not known."""
        family = instance_type.partition("-")[0]  # of Google Cloud: c4.xlarge is EC2's
        return self._types.get(instance_type) or self._families.get(family)

    def relative(self, instance_type: str, to: str) -> tuple[float, float] | None:
        """Return how fast a core of a type is over one of another, at least and at most.

        None: not known, or not measured in the same way.
        """
        here, there = self.find(to), self.find(instance_type)
        if here is None or there is None or here.method != there.method:
            return None
        doubt = _CALIBRATED_DOUBT if here.method == CALIBRATED else _SOURCED_DOUBT
        if instance_type == to:
            doubt = 1.0
        ratio = there.images_per_s / here.images_per_s
        return ratio / doubt, ratio * doubt


def user_speed_files() -> tuple[Path, ...]:
    """Return the files that HEADRACE_SPEEDS names, separated as paths in PATH are."""
    return tuple(Path(name).expanduser() for name in (env.SPEEDS.get() or "").split(":") if name)


def add_speed(file: Path, row: Mapping[str, object]) -> None:
    """Add a row to a file of speeds, or replace the one of its type.

    Several hosts may add theirs at the same time, where their file system has locks.

    UsageError: The file is none of speeds, or cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked_file(file.with_name(f".{file.name}.lock"), _LOCK_WAIT_S):
            write_text_atomically(file, _text_with(file, row))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error}. Name another with --output."
        ) from error


def _text_with(file: Path, row: Mapping[str, object]) -> str:
    others = [each for each in rows_to_keep(file) if each["InstanceType"] != row["InstanceType"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*others, row])
    return text.getvalue()


def rows_to_keep(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file to which one is to be added; raises UsageError."""
    is_new = not file.exists() or file.stat().st_size == 0
    return [] if is_new else _rows(file)


def _read_speeds(file: Path) -> Iterator[tuple[str, CoreSpeed]]:
    for number, row in enumerate(_rows(file), 2):
        try:
            speed = _speed(row)
        except ValueError:
            speed = None
        if speed is None or not row["InstanceType"] or not 0 < speed.images_per_s < float("inf"):
            raise UsageError(
                f"{file}, line {number}: InstanceType {row['InstanceType']!r} and ImagesPerCore "
                f"{row['ImagesPerCore']!r}: a type, and a number above 0."
            )
        yield row["InstanceType"], speed


def _rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file of speeds; raises UsageError."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True)
            names = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            check_choices(names, COLUMNS, f"{file}: column ")
            lacking = [name for name in _NEEDED if name not in names]
            if lacking:
                raise UsageError(f"{file} has no column {lacking[0]}: {', '.join(COLUMNS)}.")
            return [{name: (row.get(name) or "").strip() for name in COLUMNS} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error


def _speed(row: Mapping[str, str]) -> CoreSpeed:
    return CoreSpeed(
        images_per_s=float(row["ImagesPerCore"]), method=row["Method"], source=row["Source"]
    )
