"""The `headrace data` verbs: pack, index, info, lint and cat, for datasets."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.json_output import print_json
from headrace.core.errors import UsageError
from headrace.core.units import format_bytes, parse_bytes
from headrace.core.world import usable_cores

if TYPE_CHECKING:
    from headrace.data.shards.sources.source_kinds import SourceOptions

DatasetUrl = Annotated[str, typer.Argument(metavar="URL", help="The dataset's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Split = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="One split: SRC/NAME, or that of Cityscapes' trees."),
]
ImageGlob = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Pairs: which files are images, such as 'images/*.jpg'. '**' spans folders.",
    ),
]
MaskGlob = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN", help="Pairs: which files are masks; the same wildcards as the images."
    ),
]
ClassesFrom = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Number classes as in this dataset, or in this text file of one name a line.",
    ),
]
MaxBad = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Leave out up to N unreadable files; they are named."),
]

Source = Annotated[str, typer.Argument(metavar="SRC", help="Folder or table; any URL.")]
Destination = Annotated[str, typer.Argument(metavar="DST", help="Empty folder; any URL.")]
ShardSize = Annotated[str, typer.Option(metavar="SIZE", help="How large shards become, about.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Processes; as many as there are cores by default."),
]
Seed = Annotated[int, typer.Option(metavar="S", help="What shuffles samples over shards.")]
KeepOrder = Annotated[
    bool, typer.Option("--keep-order", help="Keep the source's order instead of shuffling.")
]
ResizeShort = Annotated[
    int | None,
    typer.Option(min=1, metavar="PIXELS", help="Shrink images whose short side is longer."),
]
Quality = Annotated[
    int, typer.Option(min=1, max=100, metavar="Q", help="JPEG quality of shrunk images.")
]


def pack(
    source: Source,
    destination: Destination,
    *,
    shard_size: ShardSize = "128MiB",
    workers: Workers = None,
    seed: Seed = 0,
    keep_order: KeepOrder = False,
    resize_short: ResizeShort = None,
    quality: Quality = 90,
    max_bad: MaxBad = 0,
    split: Split = None,
    image_glob: ImageGlob = None,
    mask_glob: MaskGlob = None,
    classes_from: ClassesFrom = None,
    json: Json = False,
) -> None:
    """Pack images into shards that stream: class folders, images with masks, or a table of URLs.

    Interrupted, it goes on where it stopped when the same command is run again.

    Example: [bold]headrace data pack ./train s3://bucket/train --resize-short 512[/bold]
    """
    from headrace.cli.data_report import print_dataset
    from headrace.cli.progress_display import ProgressDisplay
    from headrace.data.shards import pack as packing
    from headrace.data.shards.shard_packer import PackOptions
    from headrace.data.transforms.decode import decode_member
    from headrace.data.transforms.resize import Recode

    _declare_leaf()
    options = PackOptions(
        shard_bytes=parse_bytes(shard_size),
        workers=workers or usable_cores(),
        seed=seed,
        keep_order=keep_order,
        max_bad=max_bad,
        recoding={"resize_short": resize_short, "quality": quality} if resize_short else {},
        source=_source_options(split, image_glob, mask_glob, classes_from),
    )
    recode = Recode(resize_short=resize_short, quality=quality) if resize_short else None
    with ProgressDisplay(advice="Run the same command again to go on.") as progress:
        report = packing.pack(
            source, destination, options, recode=recode, check=decode_member, progress=progress
        )
    done = "was packed before, nothing to do" if report.already else "packed"
    more = {"already": report.already}
    print_dataset(report.url, report.manifest, f"{report.url}: {done}", more, json=json)


def _declare_leaf() -> None:
    from headrace.data.storage import declare_leaf

    declare_leaf()


def _source_options(
    split: str | None, image_glob: str | None, mask_glob: str | None, classes_from: str | None
) -> SourceOptions:
    from headrace.data.shards.sources.source_kinds import SourceOptions, read_classes

    classes = () if classes_from is None else read_classes(classes_from)
    return SourceOptions(split=split, image_glob=image_glob, mask_glob=mask_glob, classes=classes)


def index(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Folder of WebDataset tars or of loose objects.")
    ],
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="DST", help="Where index and manifest go, if not into URL itself."),
    ] = None,
    max_bad: MaxBad = 0,
    split: Split = None,
    image_glob: ImageGlob = None,
    mask_glob: MaskGlob = None,
    classes_from: ClassesFrom = None,
    json: Json = False,
) -> None:
    """Make a dataset of tars or loose objects where they lie; nothing is copied.

    Every byte is read once, for the checksums.

    Example: [bold]headrace data index s3://bucket/webdataset[/bold]
    """
    from headrace.cli.data_report import print_dataset, warnings_of_tars
    from headrace.cli.progress_display import ProgressDisplay
    from headrace.data.shards.in_place_index import index_in_place

    _declare_leaf()
    options = _source_options(split, image_glob, mask_glob, classes_from)
    with ProgressDisplay(advice="Nothing is indexed; the next run begins anew.") as progress:
        report = index_in_place(
            url, destination=to, source=options, max_bad=max_bad, progress=progress
        )
    print_dataset(report.url, report.manifest, f"{report.url}: indexed", {}, json=json)
    for warning in warnings_of_tars(report.manifest):
        typer.echo(f"warning: {warning}", err=True)


def info(url: DatasetUrl, *, json: Json = False) -> None:
    """Show what a dataset holds.

    Example: [bold]headrace data info s3://bucket/train[/bold]
    """
    from headrace.cli.data_report import print_dataset
    from headrace.data.shards.shard_index import open_index

    _declare_leaf()
    index = open_index(url)
    more = {"first_key": index.locate(0).key}
    print_dataset(index.url, index.manifest, index.url, more, json=json)
    if not json:
        typer.echo(f"first key    {more['first_key']}")


def lint(url: DatasetUrl, *, json: Json = False) -> None:
    """Check every checksum of every member; name each fault. Exit code 1 if there is any.

    Example: [bold]headrace data lint s3://bucket/train[/bold]
    """
    from headrace.cli.progress_display import ProgressDisplay
    from headrace.data.shards.lint import lint as lint_dataset

    _declare_leaf()
    with ProgressDisplay() as progress:
        report = lint_dataset(url, progress=progress)
    if json:
        print_json(asdict(report))
    else:
        for fault in report.faults:
            typer.echo(f"{fault.kind:<10} {fault}")
        verdict = f"{len(report.faults)} faults" if report.faults else "no faults"
        typer.echo(
            f"{report.url}: {verdict} in {report.num_shards:,} shards, {report.num_samples:,} "
            f"samples, {report.num_members:,} files ({format_bytes(report.read_bytes)} read)"
        )
    if report.faults:
        raise typer.Exit(1)


_TEXT_EXTENSIONS = frozenset({"cls", "json", "txt"})


def cat(
    url: DatasetUrl,
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
    from headrace.data.shards.shard_index import find_member, open_index, read_member
    from headrace.data.storage import open_store

    _declare_leaf()
    index = open_index(url)
    location, extension = find_member(index, key)
    store = open_store(index.data_url)
    contents = {
        member.extension: read_member(store, index, location, member)
        for member in location.members
        if extension in {"", member.extension}
    }
    if extension and not json:
        _write_member(contents[extension], key)
        return
    members: list[dict[str, Any]] = [
        {
            "extension": member.extension,
            "path": member.path,
            "offset": member.offset,
            "size_bytes": member.size_bytes,
            "crc32c": f"{member.crc32c:08x}",
            "text": _member_text(member.extension, contents[member.extension]),
        }
        for member in location.members
        if member.extension in contents
    ]
    if json:
        print_json({"key": location.key, "sample": location.sample, "members": members})
        return
    typer.echo(f"{location.key} (sample {location.sample:,}, shard {location.path})")
    for member in members:
        size = format_bytes(member["size_bytes"])
        typer.echo(f"  {member['extension']:<10} {size:>9}  {member['text'] or ''}".rstrip())


def _write_member(data: bytes, key: str) -> None:
    if sys.stdout.isatty() and b"\0" in data:
        raise UsageError(f"{key} is binary, and standard output is a terminal. Write it to a file.")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _member_text(extension: str, data: bytes) -> str | None:
    if extension.rpartition(".")[2] not in _TEXT_EXTENSIONS:
        return None
    return data.decode("utf-8", "replace").strip()


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Pack, index, check and look into datasets.",
        rich_markup_mode="rich",
    )
    for verb in (pack, index, info, lint, cat):
        group.command()(verb)
    app.add_typer(group, name="data")
