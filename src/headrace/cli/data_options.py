"""Options that verbs of `headrace data` share."""

from __future__ import annotations

from typing import Annotated

import typer

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
