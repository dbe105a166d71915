"""`headrace data index`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.data_options import ClassesFrom, ImageGlob, Json, MaskGlob, MaxBad, Split


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("index")(index)


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
    from headrace.cli.data_progress import ProgressDisplay
    from headrace.cli.data_report import as_json, describe, print_json
    from headrace.data.shards.in_place import index_in_place
    from headrace.data.shards.sources.classes import read_classes
    from headrace.data.shards.sources.detect import SourceOptions
    from headrace.data.storage import declare_leaf

    declare_leaf()
    options = SourceOptions(
        split=split,
        image_glob=image_glob,
        mask_glob=mask_glob,
        classes=read_classes(classes_from) if classes_from else (),
    )
    with ProgressDisplay(advice="Nothing is indexed; the next run begins anew.") as progress:
        report = index_in_place(
            url, destination=to, source=options, max_bad=max_bad, progress=progress
        )
    if json:
        print_json(as_json(report.url, report.manifest))
        return
    typer.echo("\n".join([f"{report.url}: indexed", *describe(report.manifest)]))
