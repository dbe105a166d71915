"""The loader that feeds training: its arguments, the line that constructs it, how it is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.overrides import Override
from headrace.core.source_location import CodeFolders
from headrace.observe.doctor.findings import Cause
from headrace.observe.whatif.tables import Columns

_LIBRARY_ARGUMENTS = {
    ("transformers", "num_workers"): "TrainingArguments(dataloader_num_workers={})",
    ("transformers", "prefetch_factor"): "TrainingArguments(dataloader_prefetch_factor={})",
    ("transformers", "pin_memory"): "TrainingArguments(dataloader_pin_memory={})",
    ("transformers", "persistent_workers"): "TrainingArguments(dataloader_persistent_workers={})",
    ("ultralytics", "num_workers"): "train(workers={})",
}
"""How some libraries that construct loaders are given an argument of theirs."""
_HEADRACE_LOADER_ARGUMENTS = frozenset({"num_workers", "prefetch_factor"})
"""Arguments of Headrace's loader that mean the same as in torch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoader:
    """The loader that feeds training, as in the table `loaders`."""

    number: int
    kind: str  # "torch", "headrace" or another library that makes batches
    style: str  # "map" or "iterable"
    workers: int
    prefetch_factor: int  # a worker
    batch_size: int  # -1 if unknown
    pinned: bool
    persistent: bool  # whether workers outlive an epoch
    file: str
    line: int
    constructed: int  # how often, by each rank
    created_ns: int  # when first
    by_thread: bool = False  # a thread of the script's own makes its batches, not the training one
    library: str = ""  # that constructs it; empty where the script's own line does
    library_file: str = ""
    library_line: int = 0
    library_module_file: str = ""  # below its import folder: yolish/data.py

    @property
    def place(self) -> str:
        """Where it was constructed, as " at train.py:40"; empty if unknown.

        Where a library does so: " of yolish (yolish/data.py:57, called at train.py:5)".
        """
        if not (self.file and self.line):
            return ""
        own = f"{Path(self.file).name}:{self.line}"
        if not self.library:
            return f" at {own}"
        called = f", called at {own}" if self.file != self.library_file else ""
        return f" of {self.library} ({self._library_place}{called})"

    @property
    def _library_place(self) -> str:
        return f"{self.library_module_file}:{self.library_line}"

    @property
    def named(self) -> str:
        """The loader with its place: "the DataLoader at train.py:40"."""
        return f"the {'loader' if self.library else 'DataLoader'}{self.place}"

    def advice(self, name: str, value: float | str, **more: float | str) -> str:
        """Return how to give it arguments: those of a library's loader are the library's."""
        if not self.library:
            given = " and ".join(f"{each}={new}" for each, new in {name: value, **more}.items())
            return f"Give {self.named} {given}."
        if more:
            return " ".join(self.advice(each, new) for each, new in {name: value, **more}.items())
        named = _LIBRARY_ARGUMENTS.get((self.library, name), "").format(value)
        by = f"by {named}" if named else f"by an argument of {self.library}'s own, if it has one"
        applied = self.overridden(name, float(value)) if not isinstance(value, str) else ()
        run = f", or run with --apply {applied[0]}" if applied else ""
        return f"Give {self.named} {name}={value} {by}{run}."

    def calling(self, cause: Cause) -> Cause:
        """Return a library's code as what this loader calls, at the line that constructs it."""
        if not (cause.library and self.place):
            return cause
        file, line = self.library_file or self.file, self.library_line or self.line
        return replace(cause, file=file, line=line, loader=self.place)

    def overridden(self, name: str, value: float) -> tuple[Override, ...]:
        """Return overrides that change an argument without editing the script, if any can."""
        # Each worker iterates all of a torch stream, while Headrace's loader splits it.
        known = {
            "torch": self.style == "map" or name != "num_workers",
            "headrace": name in _HEADRACE_LOADER_ARGUMENTS,
        }
        if not known.get(self.kind, False) or not self.place:
            return ()
        place = self._library_place if self.library else f"{Path(self.file).name}:{self.line}"
        return (Override(name, int(value), place),)


def training_loader(rows: Columns, libraries: Columns, folders: CodeFolders) -> TrainingLoader:
    """Return the loader of rows of `loaders`, with the library that constructs it, if one does.

    `libraries` is the table `library_loaders`; `folders` are those of the run's code.
    """
    same = ("kind", "style", "workers", "prefetch_factor", "batch_size", "file", "line")
    loader = TrainingLoader(
        number=int(rows["loader"][0]),
        pinned=bool(rows["pinned"][0] > 0),
        persistent=bool(rows["persistent"][0] > 0),
        constructed=rows.count,
        created_ns=int(rows["created_ns"].min()),
        **{name: rows[name].tolist()[0] for name in same},
    )
    return _with_library(loader, libraries, folders)


def _with_library(loader: TrainingLoader, rows: Columns, folders: CodeFolders) -> TrainingLoader:
    """Return a loader with the library that constructs it, if one does."""
    mine = rows.having(loader=loader.number)
    if not mine.count:
        return loader
    file = str(mine["file"][0])
    module_file = folders.module_file(file) or Path(file).name
    return replace(
        loader,
        library=module_file.partition("/")[0].removesuffix(".py"),
        library_file=file,
        library_line=int(mine["line"][0]),
        library_module_file=module_file,
    )
