"""What a job leaves at its output path, as SageMaker and Vertex AI lay it out.

SageMaker: `<job>/output/model.tar.gz`, `output.tar.gz`, `failure` and `intermediate/`, of all hosts
together. Vertex AI: `model/`, `checkpoints/` and `logs/`, file by file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.data.storage import Store
from headrace.launch.uploads.archives import merged, write_archive
from headrace.launch.uploads.units import Mark, Watch

_VERTEX = ("model", "checkpoints", "logs")
_PARTS = "parts"


class Mirror:
    """Files of a folder that lie below a URL under their own names.

    Args:
        store: Where.
        prefix: Below which folder there.
        folder: The folder here.
        told: Called with what a user should know.
    """

    def __init__(
        self, store: Store, prefix: str, folder: Path, told: Callable[[str], object]
    ) -> None:
        self._store, self._prefix, self._folder = store, prefix, folder
        self._watch = Watch(folder, told)
        self._there: dict[str, Mark] = {}

    def one_pass(self, *, at_the_end: bool = False) -> None:
        """Upload what is complete and new; raises StorageError."""
        for unit in self._watch.look(at_the_end=at_the_end).values():
            if not unit.is_complete:
                continue
            for name, mark in unit.files.items():
                path = self._folder / name
                if self._there.get(name) != mark and path.is_file():
                    self._store.put(f"{self._prefix}/{name}", path)
                    self._there[name] = mark


class Outputs:
    """The outputs of the hosts whose folders are on this machine.

    Args:
        store: The output path.
        job: The job's name.
        run: The run's folder here.
        told: Called with what a user should know.
    """

    def __init__(self, store: Store, job: str, run: Path, told: Callable[[str], object]) -> None:
        self._store, self._job, self._run, self._tell = store, job, run, told
        self._mirrors: dict[str, Mirror] = {}

    def meanwhile(self) -> None:
        """Upload what is synchronised while the job runs; raises StorageError."""
        for folder, prefix in self._while_it_runs().items():
            self._mirror(folder, prefix).one_pass()

    def at_the_end(self, *, of_parts: bool) -> None:
        """Upload everything.

        Args:
            of_parts: Only what another host puts together later; otherwise all hosts', those among
                them that have left such parts.

        Raises:
            StorageError: The store does not answer.
            OSError: A file cannot be read, or there is no room for the archives.
        """
        for folder, prefix in {**self._while_it_runs(), **self._of_vertex()}.items():
            self._mirror(folder, prefix).one_pass(at_the_end=True)
        trees = {path.parent.name: path for path in sorted(self._run.glob("hosts/*/ml"))}
        if of_parts:
            self._send_parts(trees)
            return
        drafts = self._run / "uploads" / "drafts"
        shutil.rmtree(drafts, ignore_errors=True)
        drafts.mkdir(parents=True)
        trees |= self._fetch_parts(drafts)
        try:
            self._send_archives(trees, drafts)
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
        for info in list(self._store.list(f"{self._job}/{_PARTS}")):
            self._store.delete(info.path)

    def _send_archives(self, trees: Mapping[str, Path], drafts: Path) -> None:
        output = f"{self._job}/output"
        for name, below in (("model", "model"), ("output", "output/data")):
            files = merged({host: tree / below for host, tree in trees.items()}, self._tell)
            if not files:
                if trees:
                    self._tell(f"{below} of the job is empty, so there is no {name}.tar.gz")
                continue
            draft = drafts / f"{name}.tar.gz"
            write_archive(files, draft)
            self._store.put(f"{output}/{draft.name}", draft)
            self._tell(f"{len(files)} files are at {self._store.url}/{output}/{draft.name}")
        failures = [tree / "output" / "failure" for tree in trees.values()]
        failures = [path for path in failures if path.is_file()]
        for number, path in enumerate(failures):
            self._store.put(f"{output}/failure{f'-{number + 1}' if number else ''}", path)
        names = {f"failure{f'-{number + 1}' if number else ''}" for number in range(len(failures))}
        for info in list(self._store.list(output)):
            name = info.path.removeprefix(f"{output}/")
            if name.partition("-")[0] == "failure" and name not in names:  # an earlier attempt's
                self._store.delete(info.path)

    def _send_parts(self, trees: Mapping[str, Path]) -> None:
        for host, tree in trees.items():
            for below in ("model", "output/data"):
                for name, path in merged({host: tree / below}, self._tell).items():
                    self._store.put(f"{self._job}/{_PARTS}/{host}/{below}/{name}", path)
            failure = tree / "output" / "failure"
            if failure.is_file():
                self._store.put(f"{self._job}/{_PARTS}/{host}/output/failure", failure)

    def _fetch_parts(self, drafts: Path) -> dict[str, Path]:
        prefix = f"{self._job}/{_PARTS}"
        trees: dict[str, Path] = {}
        for info in self._store.list(prefix):
            host, _, name = info.path.removeprefix(f"{prefix}/").partition("/")
            trees[host] = drafts / "hosts" / host
            path = trees[host] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                for start in range(0, info.size_bytes, 8 * 1024 * 1024):
                    length = min(8 * 1024 * 1024, info.size_bytes - start)
                    out.write(self._store.get_range(info.path, start, length))
        return trees

    def _while_it_runs(self) -> dict[Path, str]:
        folders = self._run.glob("hosts/*/ml/output/intermediate")
        found = dict.fromkeys(folders, f"{self._job}/output/intermediate")
        logs = self._run / "output" / "logs"
        return {**found, logs: "logs"} if logs.is_dir() else found

    def _of_vertex(self) -> dict[Path, str]:
        folders = {self._run / "output" / name: name for name in _VERTEX}
        return {path: name for path, name in folders.items() if path.is_dir()}

    def _mirror(self, folder: Path, prefix: str) -> Mirror:
        key = str(folder)
        if key not in self._mirrors:
            self._mirrors[key] = Mirror(self._store, prefix, folder, self._tell)
        return self._mirrors[key]
