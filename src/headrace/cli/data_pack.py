"""`headrace data pack`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.cli.data_options import ClassesFrom, ImageGlob, Json, MaskGlob, MaxBad, Split
from headrace.core.units import parse_bytes

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


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("pack")(pack)


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
    from headrace.cli.data_progress import ProgressDisplay
    from headrace.cli.data_report import as_json, describe, print_json
    from headrace.data.shards import pack as packing
    from headrace.data.shards.options import PackOptions
    from headrace.data.shards.sources.classes import read_classes
    from headrace.data.shards.sources.detect import SourceOptions
    from headrace.data.storage import declare_leaf
    from headrace.data.transforms.decode import decode_member
    from headrace.data.transforms.recode import Recode

    declare_leaf()
    options = PackOptions(
        shard_bytes=parse_bytes(shard_size),
        workers=workers or len(os.sched_getaffinity(0)),
        seed=seed,
        keep_order=keep_order,
        max_bad=max_bad,
        recoding={"resize_short": resize_short, "quality": quality} if resize_short else {},
        source=SourceOptions(
            split=split,
            image_glob=image_glob,
            mask_glob=mask_glob,
            classes=read_classes(classes_from) if classes_from else (),
        ),
    )
    recode = Recode(resize_short=resize_short, quality=quality) if resize_short else None
    with ProgressDisplay(advice="Run the same command again to go on.") as progress:
        report = packing.pack(
            source, destination, options, recode=recode, check=decode_member, progress=progress
        )
    if json:
        print_json(as_json(report.url, report.manifest) | {"already": report.already})
        return
    done = "was packed before, nothing to do" if report.already else "packed"
    typer.echo("\n".join([f"{report.url}: {done}", *describe(report.manifest)]))
