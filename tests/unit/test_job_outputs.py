"""The outputs of a job's attempts, collected from several hosts."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from headrace.core.errors import CheckpointError
from headrace.core.files import temporary_name
from headrace.data.storage import Store, open_store
from headrace.jobs.spec import ContractOptions, SyncOptions
from headrace.jobs.sync.host_sync import OutputUpload
from headrace.jobs.sync.output_process import JobOutputs, merge_folders, write_archive


def test_a_file_that_was_left_half_written_is_no_output(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.pt").touch()
    (tmp_path / "model" / temporary_name()).touch()  # its writer was killed
    assert merge_folders({"algo-1": tmp_path}, print).keys() == {"model/weights.pt"}


def test_of_files_with_one_name_the_newest_is_taken_and_that_is_reported(tmp_path: Path):
    reports: list[str] = []
    for host in ("algo-1", "algo-2"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "weights.pt").touch()
    folders = {host: tmp_path / host for host in ("algo-1", "algo-2")}
    for newest, its_folder in folders.items():
        for host, folder in folders.items():
            time_ns = 2_000_000_000 if host == newest else 1_000_000_000
            os.utime(folder / "weights.pt", ns=(time_ns, time_ns))
        found = merge_folders(folders, reports.append)
        assert found == {"weights.pt": its_folder / "weights.pt"}
    report = "weights.pt was made by several hosts, algo-2 among them; the newest is taken"
    assert reports == [report, report]


class Outputs:
    """A run folder with the outputs of a job, and what is uploaded of them."""

    def __init__(self, place: Path, contract: str) -> None:
        self.run, self.reports = place / "run", list[str]()
        self.contract = contract
        below = "output/model" if contract == "vertex" else "hosts/algo-1/ml/model"
        self.model = self.run / below
        self.model.mkdir(parents=True)
        self.store: Store = open_store(str(place / "url"))

    def uploaded(self) -> dict[str, str]:
        """Upload the outputs; return the model's files there with their texts."""
        outputs = JobOutputs(self.store, "job", self.run, self.reports.append)
        if self.contract == "vertex":
            outputs.meanwhile()
        outputs.at_the_end(of_parts=self.contract == "part")
        return self.there()

    def there(self) -> dict[str, str]:
        if self.contract == "sagemaker":
            archive = BytesIO(bytes(self.store.get("job/output/model.tar.gz")))
            with tarfile.open(fileobj=archive) as opened:
                return {
                    member.name: file.read().decode()
                    for member in opened
                    if (file := opened.extractfile(member)) is not None
                }
        prefix = "model/" if self.contract == "vertex" else "job/parts/algo-1/model/"
        return {
            info.path.removeprefix(prefix): bytes(self.store.get(info.path)).decode()
            for info in self.store.list(prefix.rstrip("/"))
        }


@pytest.fixture(params=["vertex", "sagemaker", "part"])
def outputs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outputs]:
    found = Outputs(tmp_path, request.param)
    (found.model / "whole.pt").write_text("whole")
    yield found
    assert found.there()["whole.pt"] == "whole"


def test_links_to_files_and_folders_are_followed_wherever_they_lead(
    outputs: Outputs, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (cache / "snapshot").mkdir(parents=True)
    (cache / "blob").write_text("bytes")
    (cache / "snapshot" / "weights").symlink_to("../blob")
    (outputs.model / "1").mkdir()
    (outputs.model / "1" / "a.pt").write_text("a")
    (outputs.model / "best").symlink_to("1")
    (outputs.model / "best.pt").symlink_to("1/a.pt")
    (outputs.model / "base").symlink_to(cache / "snapshot")
    assert outputs.uploaded() == {
        "whole.pt": "whole", "1/a.pt": "a", "best/a.pt": "a", "best.pt": "a",
        "base/weights": "bytes",
    }  # fmt: skip
    assert outputs.reports == [] or outputs.contract == "sagemaker"


NOTHING, HOLDS = "is a link that leads to nothing", "is a link to a folder that holds it"
CANNOT = {
    "a link to itself": (lambda path: path.symlink_to(path.name), NOTHING),
    "a link to nothing": (lambda path: path.symlink_to("no"), NOTHING),
    "a link to its folder": (lambda path: path.symlink_to("."), HOLDS),
    "a link to the root": (lambda path: path.symlink_to("/"), HOLDS),
    "a link from below": (lambda path: (path.mkdir(), (path / "up").symlink_to("..")), HOLDS),
}  # fmt: skip


@pytest.mark.parametrize("odd", CANNOT)
def test_what_cannot_be_uploaded_is_named_and_all_else_is_uploaded(
    outputs: Outputs, odd: str
) -> None:
    make, message = CANNOT[odd]
    make(outputs.model / "odd")
    with pytest.raises(CheckpointError, match="not uploaded as the script meant it") as raised:
        outputs.uploaded()
    assert message in str(raised.value)
    assert outputs.there() == {"whole.pt": "whole"}


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_in_the_place_of_the_model_s_folder_is_named(tmp_path: Path, kind: str) -> None:
    for contract in ("vertex", "sagemaker", "part"):
        outputs = Outputs(tmp_path / contract, contract)
        outputs.model.rmdir()
        if kind == "file":
            outputs.model.write_text("weights")
        else:
            outputs.model.symlink_to("no")
        with pytest.raises(CheckpointError, match=r"\. .*cannot be read: (Not a dir|No such)"):
            outputs.uploaded()


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(tmp_path: Path) -> None:
    file, archive = tmp_path / "a.pt", tmp_path / "archive"
    file.write_bytes(os.urandom(4 << 20))
    os.mkfifo(archive)
    with ThreadPoolExecutor(1) as pool:
        shortened = pool.submit(write_archive, {"a.pt": file, "b.pt": file}, archive)
        with archive.open("rb") as pipe:
            begin = pipe.read(1)  # it goes on writing once the rest of a pipe's bytes is read
            os.truncate(file, 3 << 20)
            content = begin + pipe.read()
        assert shortened.result(60) == {"a.pt": "has become shorter while it was read"}
    with tarfile.open(fileobj=BytesIO(content)) as opened:
        assert [each.size for each in opened] == [4 << 20, 3 << 20]


def test_a_file_that_is_gone_before_its_turn_costs_no_other(
    outputs: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = outputs.model / "gone.pt"
    gone.write_text("gone")

    def found_then_gone(store: Store, path: str, data: object) -> None:
        gone.unlink(missing_ok=True)
        put(store, path, data)

    if outputs.contract == "sagemaker":  # it is listed, and not yet in the archive
        os.mkfifo(outputs.model / "pipe")
        outputs.reports = type("Reports", (list,), {"append": lambda *_: gone.unlink(True)})()
    put = type(outputs.store).put
    monkeypatch.setattr(type(outputs.store), "put", found_then_gone)
    with pytest.raises(CheckpointError, match=r"gone\.pt cannot be read"):
        outputs.uploaded()
    assert outputs.there() == {"whole.pt": "whole"}


def test_a_file_of_one_host_in_the_place_of_another_s_folder_is_named(tmp_path: Path) -> None:
    for host, name in (("algo-1", "best"), ("algo-2", "best/model.pt"), ("algo-2", "other.pt")):
        (tmp_path / host / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / host / name).touch()
    failures: list[str] = []
    hosts = {host: tmp_path / host for host in ("algo-1", "algo-2")}
    files = merge_folders(hosts, print, failures.append)
    assert files.keys() == {"best/model.pt", "other.pt"}
    assert failures == ["best is a file of one host and a folder of another"]


def test_parts_of_an_attempt_that_was_killed_are_not_merged(tmp_path: Path) -> None:
    part = Outputs(tmp_path, "part")
    (part.model / "old.pt").write_text("old")
    part.uploaded()  # the launcher was killed before it merged them
    (part.model / "old.pt").unlink()
    (part.model / "new.pt").write_text("new")
    JobOutputs(part.store, "job", tmp_path / "launcher", print).remove_parts()
    part.uploaded()
    launcher = JobOutputs(part.store, "job", tmp_path / "launcher", print)
    launcher.at_the_end(of_parts=False)
    part.contract = "sagemaker"
    assert part.there() == {"new.pt": "new"}


@pytest.mark.parametrize("hosts", [(), ("algo-1",), ("algo-1", "algo-3")])
def test_failures_of_hosts_that_an_attempt_has_no_more_are_none_of_it(
    tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    outputs = {
        host: tmp_path / "run" / "hosts" / host / "ml" / "output"
        for host in ("algo-1", "algo-2", "algo-3")
    }
    for output in outputs.values():
        output.mkdir(parents=True)
        (output / "failure").write_text("of the attempt before")
    upload = OutputUpload(
        SyncOptions(output_path=str(tmp_path / "url")), ContractOptions(contracts=("sagemaker",)),
        tmp_path / "run",
    )  # fmt: skip
    upload.begin()
    for host in hosts:
        (outputs[host] / "failure").write_text(f"of {host}")
    assert upload.finish()
    store = open_store(str(tmp_path / "url"))
    there = [bytes(store.get(info.path)).decode() for info in store.list("run/output")]
    assert sorted(there) == [f"of {host}" for host in hosts]


def test_a_circle_through_folders_elsewhere_ends(outputs: Outputs, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_text("a")
    (elsewhere / "back").symlink_to(outputs.model)
    (outputs.model / "out").symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=r"out/back .*is a link to a folder that holds it"):
        outputs.uploaded()
    assert outputs.there() == {"whole.pt": "whole", "out/a": "a"}


def test_a_file_that_is_still_being_written_is_named(outputs: Outputs) -> None:
    with (outputs.model / "late.pt").open("w") as file:
        file.write("half")
        file.flush()
        with pytest.raises(CheckpointError, match=r"late\.pt .*has it open for writing"):
            outputs.uploaded()
    assert ("late.pt" in outputs.there()) == (outputs.contract != "vertex")


def test_what_has_no_bytes_is_reported_and_fails_no_job(outputs: Outputs) -> None:
    os.mkfifo(outputs.model / "pipe")
    assert outputs.uploaded() == {"whole.pt": "whole"}
    assert [line for line in outputs.reports if "pipe" in line and "left out" in line]


NO_END = "PK\x03\x04 as an archive begins"


@pytest.mark.parametrize("name", ["model.zip.aa", "model.pt.001", "xaa"])
def test_a_part_of_a_split_archive_is_uploaded_as_it_is(
    outputs: Outputs, tmp_path: Path, name: str
) -> None:
    (tmp_path / "blob").write_text(NO_END)
    (outputs.model / name).write_text(NO_END)
    (outputs.model / "linked.zip.aa").symlink_to(tmp_path / "blob")
    assert outputs.uploaded() == {"whole.pt": "whole", name: NO_END, "linked.zip.aa": NO_END}


def test_an_archive_that_is_cut_short_is_left_out_also_behind_a_link(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path, "vertex")
    (tmp_path / "blob.aa").write_text(NO_END)
    (outputs.model / "cut.pt").write_text(NO_END)
    (outputs.model / "linked.pt").symlink_to(tmp_path / "blob.aa")
    (outputs.model / "whole.pt").write_text("whole")
    assert outputs.uploaded() == {"whole.pt": "whole"}
    assert outputs.reports == [
        f"model/{name} is left out: its end is missing" for name in ("cut.pt", "linked.pt")
    ]
