"""The text and JSON output of the `headrace data` verbs about a dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from headrace.core.units import format_bytes
from headrace.data.shards.manifest import DatasetManifest

_MAX_BAD_SHOWN = 20


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))


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
    lines.append(f"fingerprint  {manifest.fingerprint}")
    lines.append(f"source       {manifest.source.kind}: {manifest.source.url}")
    if manifest.data_url:
        lines.append(f"data         {manifest.data_url}")
    return lines + _ignored_and_bad(manifest)


def _shards(manifest: DatasetManifest) -> str:
    if manifest.layout == "objects":
        return "every sample is one (loose objects)"
    mean_bytes = manifest.size_bytes / len(manifest.shards)
    return f"{len(manifest.shards):,} of {format_bytes(mean_bytes)} on average"


def _ignored_and_bad(manifest: DatasetManifest) -> list[str]:
    lines = []
    source = manifest.source
    if source.num_ignored:
        examples = ", ".join(source.ignored[:2])
        lines.append(f"ignored      {source.num_ignored:,} of no sample, such as {examples}")
    if manifest.bad:
        lines.append(f"left out     {len(manifest.bad):,} unreadable:")
        lines.extend(f"  {bad.file}: {bad.reason}" for bad in manifest.bad[:_MAX_BAD_SHOWN])
        if len(manifest.bad) > _MAX_BAD_SHOWN:
            lines.append(f"  and {len(manifest.bad) - _MAX_BAD_SHOWN} more; --json lists them all")
    return lines
