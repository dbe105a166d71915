"""The text and JSON output of the `headrace data` verbs about a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from headrace.cli.json_output import print_json
from headrace.core.units import format_bytes
from headrace.data.image_files import is_mask_name
from headrace.data.shards.data_files import is_image
from headrace.data.shards.manifest import DatasetManifest

_MAX_BAD_SHOWN = 20


def print_dataset(
    url: str, manifest: DatasetManifest, title: str, more: Mapping[str, Any], *, json: bool
) -> None:
    """Print a title and a dataset's figures; or its manifest without shards, and more, as JSON."""
    if not json:
        typer.echo("\n".join([title, *describe(manifest)]))
        return
    content = asdict(manifest)
    shards = content.pop("shards")
    content["num_shards"] = manifest.num_samples if manifest.layout == "objects" else len(shards)
    print_json({"url": url, **content, **more})


def describe(manifest: DatasetManifest) -> list[str]:
    """Return lines with a dataset's figures."""
    kinds = ", ".join(extension.name for extension in manifest.extensions)
    lines = [
        f"samples      {manifest.num_samples:,}",
        f"files        {manifest.num_members:,} ({kinds})",
        f"size         {format_bytes(manifest.size_bytes)}",
        f"shards       {_shards(manifest)}",
    ]
    if manifest.classes:
        names = ", ".join(manifest.classes[:5])
        more = ", ..." if len(manifest.classes) > 5 else ""
        lines.append(f"classes      {len(manifest.classes)} ({names}{more})")
    if manifest.num_recoded:
        lines.append(f"recoded      {manifest.num_recoded:,} files")
    if manifest.num_oriented:
        lines.append(
            f"orientation  {manifest.num_oriented:,} files have one in their EXIF data; it is "
            "kept, and pixels are read as they are stored, not turned"
            + ("; masks must be of these pixels" if manifest.source.kind == "pairs" else "")
        )
    lines.append(f"fingerprint  {manifest.fingerprint}")
    lines.append(f"source       {manifest.source.kind}: {manifest.source.url}")
    if manifest.data_url:
        where = "" if manifest.data_folder is None else " in the dataset's own folder"
        lines.append(f"data         {manifest.data_url}{where}")
    return lines + _ignored_and_bad(manifest)


def _shards(manifest: DatasetManifest) -> str:
    if manifest.layout == "objects":
        return "every sample is one (loose objects)"
    mean_bytes = manifest.size_bytes / len(manifest.shards)
    return f"{len(manifest.shards):,} of {format_bytes(mean_bytes)} on average"


def _ignored_and_bad(manifest: DatasetManifest) -> list[str]:
    lines = []
    source = manifest.source
    others = source.num_ignored - source.num_system
    if others:
        examples = [path for path in source.ignored if path not in source.system]
        such_as = f", such as {', '.join(examples[:2])}" if examples else ""
        lines.append(f"ignored      {others:,} of no sample{such_as}")
    if source.num_system:
        examples = list(source.system[:2])
        lines.append(
            f"ignored      {source.num_system:,} hidden or system files, such as "
            f"{', '.join(examples)}"
        )
    if manifest.bad:
        lines.append(f"left out     {len(manifest.bad):,} unreadable:")
        lines.extend(f"  {bad.file}: {bad.reason}" for bad in manifest.bad[:_MAX_BAD_SHOWN])
        if len(manifest.bad) > _MAX_BAD_SHOWN:
            lines.append(f"  and {len(manifest.bad) - _MAX_BAD_SHOWN} more; --json lists them all")
    return lines


def warnings_of_tars(manifest: DatasetManifest) -> list[str]:
    """Return warnings of tars: names with dots, and samples without members that others have."""
    if manifest.layout != "tar":
        return []
    return _warnings_of_names(manifest) + _warnings_of_members(manifest)


def _warnings_of_members(manifest: DatasetManifest) -> list[str]:
    """Return a warning where samples lack members; images of several formats count as one kind."""
    kinds = [extension.name for extension in manifest.extensions]
    images = [kind for kind in kinds if is_image(f"x.{kind}") and not is_mask_name(kind)]
    complete = manifest.num_samples * (len(kinds) - len(images) + bool(images))
    if manifest.num_members >= complete:
        return []
    too_few = complete - manifest.num_members
    warning = (
        f"{manifest.num_samples:,} samples with files of the kinds {', '.join(kinds)} have "
        f"{manifest.num_members:,} files, at least {too_few:,} too few for each to have all: a "
        "batch whose first sample lacks one is without it. A member belongs to the sample of its "
        "own path and tar: a/1.jpg and b/1.cls, or ./1.jpg and 1.cls, are two samples."
    )
    return [warning]


_ROLES = frozenset({"image", "img", "input", "mask", "rgb", "target"})


def _warnings_of_names(manifest: DatasetManifest) -> list[str]:
    """Return warnings where names with dots may make one sample of several files."""
    by_kind: dict[str, list[str]] = {}
    for extension in (each.name for each in manifest.extensions):
        first, dot, last = extension.rpartition(".")
        if dot and first not in _ROLES:
            by_kind.setdefault(last, []).append(extension)
    return [
        f"members .{names[0]} and .{names[1]} ({len(names)} names end in .{kind}): a sample's name "
        f"ends at the first dot of its file's name, as in WebDataset, so x.{names[0]} and "
        f"x.{names[1]} are two members of one sample x. Where each is a sample of its own, write "
        "the tars again with names without dots."
        for kind, names in by_kind.items()
        if len(names) > 1
    ]
