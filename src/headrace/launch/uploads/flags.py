"""The flags of `headrace run` about what is kept elsewhere: `--checkpoint-uri`, `--output-path`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import UsageError

FLAGS = {
    "--checkpoint-uri": "URL: where checkpoints are kept while the job runs, and come back from.",
    "--output-path": "URL: where model and output go when the job has ended.",
}
"""Each flag, and its help."""
SPELLINGS = {
    spelling: flag.removeprefix("--").replace("-", "_")
    for flag in FLAGS
    for spelling in (flag, f"--{flag.removeprefix('--').replace('-', '_')}")
}
"""Each spelling of a flag, and its name among parsed ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadOptions:
    """What a command line says that is kept elsewhere.

    Attributes:
        checkpoint_uri: Where checkpoints are; None: in the run's folder alone.
        output_path: Likewise, what the job has made.
    """

    checkpoint_uri: str | None = None
    output_path: str | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is kept elsewhere."""
        return self.checkpoint_uri is not None or self.output_path is not None

    @classmethod
    def parse(cls, told: Mapping[str, Sequence[str]]) -> UploadOptions:
        """Return what flags say.

        Args:
            told: The values of each flag, by its name in `SPELLINGS`.

        Raises:
            UsageError: An unknown scheme, or a store that holds nothing for another process.
        """
        found = {
            name: told[name][-1] if told.get(name) else None
            for name in ("checkpoint_uri", "output_path")
        }
        for name, url in found.items():
            if url is not None:
                _check_url(f"--{name.replace('_', '-')}", url)
        return cls(**found)


def add_upload_flags(parser: argparse.ArgumentParser) -> None:
    """Have a parser know the flags."""
    for flag, meaning in FLAGS.items():
        spellings = [each for each, name in SPELLINGS.items() if name == SPELLINGS[flag]]
        parser.add_argument(*spellings, action="append", default=[], help=meaning)


def upload_options(args: argparse.Namespace) -> UploadOptions:
    """Return what parsed flags say; raises UsageError."""
    return UploadOptions.parse({name: getattr(args, name) for name in SPELLINGS.values()})


def _check_url(flag: str, url: str) -> None:
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
