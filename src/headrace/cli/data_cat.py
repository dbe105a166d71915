"""`headrace data cat`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from headrace.cli.data_options import Json
from headrace.core.errors import UsageError
from headrace.core.units import format_bytes

_TEXT = frozenset({"cls", "json", "txt"})


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("cat")(cat)


def cat(
    url: Annotated[str, typer.Argument(metavar="URL", help="The dataset's folder.")],
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="A sample's key; or with a member's extension: that member's bytes."
        ),
    ],
    *,
    json: Json = False,
) -> None:
    """Show one sample, or write one of its members to standard output.

    Example: [bold]headrace data cat s3://bucket/train cat/cat_007.jpg > cat.jpg[/bold]
    """
    from headrace.cli.data_report import print_json
    from headrace.data.shards.index import open_index
    from headrace.data.shards.sample_reader import find_member, read_member
    from headrace.data.storage import declare_leaf, open_store

    declare_leaf()
    index = open_index(url)
    location, extension = find_member(index, key)
    store = open_store(index.data_url)
    contents = {
        member.extension: read_member(store, index, location, member)
        for member in location.members
        if extension in {"", member.extension}
    }
    if extension and not json:
        _write(contents[extension], key)
        return
    about: list[dict[str, Any]] = [
        {
            "extension": member.extension,
            "path": member.path,
            "offset": member.offset,
            "size_bytes": member.size_bytes,
            "crc32c": f"{member.crc32c:08x}",
            "text": _text(member.extension, contents[member.extension]),
        }
        for member in location.members
        if member.extension in contents
    ]
    if json:
        print_json({"key": location.key, "sample": location.sample, "members": about})
        return
    typer.echo(f"{location.key} (sample {location.sample:,}, shard {location.path})")
    for member in about:
        size = format_bytes(member["size_bytes"])
        typer.echo(f"  {member['extension']:<10} {size:>9}  {member['text'] or ''}".rstrip())


def _write(data: bytes, key: str) -> None:
    if sys.stdout.isatty() and b"\0" in data:
        raise UsageError(f"{key} is binary, and standard output is a terminal. Write it to a file.")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _text(extension: str, data: bytes) -> str | None:
    if extension.rpartition(".")[2] not in _TEXT:
        return None
    return data.decode("utf-8", "replace").strip()
