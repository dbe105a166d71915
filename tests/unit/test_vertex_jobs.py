"""What jobs of Vertex AI's SDK ask for: worker pools, commands, packages; nothing is started."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import vertex as aiplatform
from headrace.core.errors import UsageError
from headrace.jobs.vertex_sdk.worker_pools import pools_request
from headrace.records.run_folder import RunFolder, open_run_folder

IMAGE = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
MACHINE = {
    "machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 2,
}  # fmt: skip


def pool(*command: str, replicas: int = 1, **more: Any) -> dict[str, Any]:
    container = {"image_uri": IMAGE, "command": list(command), **more}
    return {"machine_spec": MACHINE, "replica_count": replicas, "container_spec": container}


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("python train.py --lr 0.1", {"entry_point": "train.py", "args": ["--lr", "0.1"]}),
        ("/usr/bin/python3.10 -u -m trainer.task", {"entry_point": "trainer.task", "module": True}),
        ("torchrun train.py", {"entry_point": "torchrun", "no_python": True, "args": ["train.py"]}),
        (
            "python -O train.py",
            {"entry_point": "python", "no_python": True, "args": ["-O", "train.py"]},
        ),
        ("sh -c true", {"entry_point": "sh", "no_python": True, "args": ["-c", "true"]}),
    ],
)
def test_a_containers_command_runs_here(command: str, asked: dict[str, Any]) -> None:
    found = pools_request([pool(*command.split())], "")
    assert {name: found[name] for name in asked} == asked
    assert ("module" in found, "no_python" in found) == ("module" in asked, "no_python" in asked)


def test_an_interpreter_may_stand_in_the_arguments_of_a_container() -> None:
    found = pools_request([pool(args=["python", "train.py", "--lr", "1"])], "")
    assert (found["entry_point"], found["args"]) == ("train.py", ["--lr", "1"])


def test_pools_that_train_are_one_group_and_reduction_servers_none() -> None:
    worker = pool("python", "train.py", args=["--epochs", "3"], env=[{"name": "A", "value": "1"}])
    reducer = {
        "machine_spec": {"machine_type": "n1-highcpu-16"}, "replica_count": 4,
        "container_spec": {"image_uri": "us-docker.pkg.dev/x/reductionserver:latest"},
    }  # fmt: skip
    found = pools_request([worker, {**worker, "replica_count": 3}, reducer], "")
    assert [group.flag() for group in found["instance_groups"]] == ["worker=4xn1-standard-8:gpus=2"]
    assert found["args"] == ["--epochs", "3"]
    assert found["environment"] == {"A": "1"}
    beside = {**worker, "machine_spec": {"machine_type": "n1-standard-4"}}
    for second, hosts in ((worker, 2), ({}, 1)):  # {}: a role that nobody has
        groups = pools_request([worker, second, {}, beside], "")["instance_groups"]
        assert [group.flag() for group in groups] == [
            f"worker={hosts}xn1-standard-8:gpus=2", "pool3=1xn1-standard-4",
        ]  # fmt: skip
    other_image = {**worker, "container_spec": {**worker["container_spec"], "image_uri": "other"}}
    assert pools_request([worker, other_image], "")["instance_groups"][0].count == 2


class SdksMachine:
    """An object as the SDK has them, of which a class method makes a dict."""

    @staticmethod
    def to_dict(_: SdksMachine) -> dict[str, Any]:
        return {
            **MACHINE,
            "accelerator_type": SimpleNamespace(name="NVIDIA_L4"),
            "tpu_topology": "",
        }


class SdksPool:
    """A pool as the SDK has it: protobuf's JSON has its `replica_count`, of 64 bits, as a text."""

    @staticmethod
    def to_dict(_: SdksPool) -> dict[str, Any]:
        return {**pool("python", "a.py"), "replica_count": "3", "nfs_mounts": []}


def test_objects_of_the_sdk_are_read_as_dicts() -> None:
    spec = {**pool("python", "a.py"), "machine_spec": SdksMachine()}
    assert pools_request([spec], "")["instance_groups"][0].devices == 2
    (group,) = pools_request([SdksPool()], "")["instance_groups"]
    assert (group.count, group.devices) == (3, 2)
    for none in ("0", "", "-1", "1.5", "x"):
        with pytest.raises(UsageError, match="replica_count"):
            pools_request([{**spec, "replica_count": none}], "")


@pytest.mark.parametrize(
    ("kind", "count", "devices"),
    [
        (aiplatform.gapic.AcceleratorType.NVIDIA_TESLA_T4, 2, 2),
        (aiplatform.gapic.AcceleratorType.NVIDIA_L4, 0, 1),
        (aiplatform.gapic.AcceleratorType.NVIDIA_H100_80GB.name, 8, 8),
        (aiplatform.gapic.AcceleratorType.ACCELERATOR_TYPE_UNSPECIFIED, 0, None),
        (aiplatform.gapic.AcceleratorType.ACCELERATOR_TYPE_UNSPECIFIED.name, 0, None),
    ],
)
def test_devices_are_named_as_by_the_sdk(kind: Any, count: int, devices: int | None) -> None:
    machine = {**MACHINE, "accelerator_type": kind, "accelerator_count": count}
    (group,) = pools_request([{**pool("python", "a.py"), "machine_spec": machine}], "")[
        "instance_groups"
    ]
    assert group.devices == devices


@pytest.mark.parametrize(
    "container",
    [
        {"env": "HF_TOKEN='canary one'"},
        {"env": ["HF_TOKEN=canary one"]},
        {"env": [{"value": "canary one"}]},
        {"env": [("HF_TOKEN", "canary one")]},
        {"args": "--api-key=canary"},
        {"command": ["python", "-m", "--api-key", "canary one"]},
    ],
)
def test_no_secret_of_a_wrong_container_is_shown(container: dict[str, Any]) -> None:
    spec = pool("python", "a.py")
    with pytest.raises(UsageError) as raised:
        pools_request([{**spec, "container_spec": {**spec["container_spec"], **container}}], "")
    assert "canary" not in str(raised.value)
    assert "one" not in str(raised.value)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "first pool is empty"),
        ([{}], "first pool is empty"),
        (None, "not a list"),
        ([pool("python", "a.py", args="--epochs=3")], "is not a list"),
        ([{**pool(), "container_spec": {"command": "python a.py"}}], "is not a list"),
        ([pool("python", "a.py", env=7)], "no list of names"),
        ([pool("python", "a.py", env=[{"value": "b"}])], "has no name"),
        ([{**pool("python", "a.py"), "machine_spec": {"accelerator_count": "2"}}], "whole number"),
        ([pool()], "no container is started"),
        ([pool(args=["--epochs", "3"])], rf"what {IMAGE} runs by itself is not known"),
        ([pool(args=["fit", "--epochs", 3])], "no container is started"),
        ([pool(args=["train.py"])], "no container is started"),
        ([{**pool(), "container_spec": {"args": ["-v"]}}], "what the image runs by itself"),
        ([{**pool(), "container_spec": {"command": None, "args": ["x"]}}], "the image runs by"),
        ([pool("--epochs", "3")], "no container is started"),
        ([pool("-m", "trainer.task", args=["--lr", 1])], "no container is started"),
        ([pool("python", "-m")], "names no script or module"),
        ([pool("python", "-c", "1")], "names no script or module"),
        ([{**pool("python", "a.py"), "replicas": 2}], "replica_count"),
        ([{**pool("python", "a.py"), "replica_count": 0}], "replica_count"),
        ([{**pool("python", "a.py"), "python_package_spec": {}}], "one of them"),
        ([pool("python", "a.py"), pool("python", "b.py")], "different code"),
        ([pool("python", "a.py"), {**pool("python", "a.py"), "machine_spec": {}}], "machine_spec"),
        ([{**pool("python", "a.py"), "machine_spec": {"machine_type": "n1-standrd-4"}}],
         "n1-standard-4"),
        ([{**pool("python", "a.py"), "machine_spec": {"tpu_topology": "2x2"}}], "TPUs"),
        ([3], "no dict"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(specs: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pools_request(specs, "CustomJob: ")


def sdist(place: Path, members: dict[str, str], root: str = "trainer-0.1/") -> str:
    with tarfile.open(place, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(root + name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return str(place)


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUNS_DIR", str(tmp_path / "runs"))


def unpack(tmp_path: Path, *packages: str) -> set[Path]:
    """Return the folders of unpacked packages once some have been."""
    aiplatform.CustomPythonPackageTrainingJob("job", packages, "trainer.task")
    return set((tmp_path / "runs" / ".packages").iterdir())


@pytest.mark.parametrize("prefix", ["", "src/"])
def test_packages_are_unpacked_once(tmp_path: Path, prefix: str) -> None:
    members = {f"{prefix}trainer/__init__.py": "", f"{prefix}trainer/task.py": "x = 1",
               "setup.py": "raise SystemExit", "PKG-INFO": "Requires-Dist: numpy>=1\n"}  # fmt: skip
    first = sdist(tmp_path / "a.tar.gz", members)
    wheel = tmp_path / "more-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("more/__init__.py", "y = 2")
    both = unpack(tmp_path, first, str(wheel))
    (folder,) = both
    assert (folder / "trainer" / "task.py").read_text() == "x = 1"
    assert (folder / "more" / "__init__.py").exists()
    assert unpack(tmp_path, first, str(wheel)) == both
    assert len(unpack(tmp_path, first)) == 2


def test_packages_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    needs = (
        "Requires-Dist: no-such-thing>=3; python_version > '3'\n"
        "Requires-Dist: other; extra == 'all'\n"
    )
    needy = sdist(tmp_path / "a.tar.gz", {"PKG-INFO": needs})
    with pytest.raises(UsageError, match="pip install 'no-such-thing>=3") as error:
        unpack(tmp_path, needy)
    assert "other" not in str(error.value)
    outside = sdist(tmp_path / "b.tar.gz", {"../../evil.py": ""}, root="")
    with pytest.raises(UsageError, match="outside of its folder"):
        unpack(tmp_path, outside)
    assert not (tmp_path / "evil.py").exists()
    (tmp_path / "c.whl").write_text("no archive")
    for place, words in (
        ("c.whl", "is damaged"),
        ("d.tar.gz", "cannot be had"),
        ("e.py", "no package"),
    ):
        with pytest.raises(UsageError, match=words):
            unpack(tmp_path, str(tmp_path / place))
    with pytest.raises(UsageError, match="name the package"):
        unpack(tmp_path)


SETUP = {"setup.py": ""}
TASK = {"trainer/__init__.py": "", "trainer/task.py": "x = 1"}


@pytest.mark.parametrize(
    ("members", "root"),
    [
        (TASK, ""),  # a folder, packed by tar
        (TASK | SETUP, "./trainer-0.1/"),
        ({"trainer/PKG-INFO": "Requires-Dist: not-there", **TASK} | SETUP, "trainer-0.1/"),
        ({"__init__.py": "", **SETUP, "task.py": "x = 1"}, "trainer/"),  # the package's own setup
    ],
)
def test_packages_in_other_forms_are_importable(tmp_path: Path, members: dict[str, str], root: str):
    (folder,) = unpack(tmp_path, sdist(tmp_path / "a.tar.gz", members, root))
    assert (folder / "trainer" / "task.py").read_text() == "x = 1"


def test_links_in_a_package_are_files_and_others_packages_are_needed(tmp_path: Path):
    first = tmp_path / "first.tar.gz"
    with tarfile.open(first, "w:gz") as archive:
        for name, text in {"setup.py": "", "trainer/__init__.py": "", "trainer/a.py": "a"}.items():
            info = tarfile.TarInfo(f"trainer-1/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
        for name, kind in (("hard", tarfile.LNKTYPE), ("soft", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(f"trainer-1/trainer/{name}.py")
            info.type, info.linkname = kind, "trainer-1/trainer/a.py"
            if name == "soft":
                info.linkname = "a.py"
            archive.addfile(info)
    described = {
        "PKG-INFO": "Name: Other_Thing\nRequires-Dist: trainer-lib\n",
        "other/__init__.py": "",
    }
    lib = {"PKG-INFO": "Name: trainer.lib\n", "lib/__init__.py": ""}
    (folder,) = unpack(
        tmp_path, str(first), sdist(tmp_path / "b.tar.gz", described, "other-1/"),
        sdist(tmp_path / "c.tar.gz", lib, "lib-1/"),
    )  # fmt: skip
    for name in ("hard", "soft"):
        assert (folder / "trainer" / f"{name}.py").read_text() == "a"
    assert (folder / "lib" / "__init__.py").exists()


@pytest.mark.parametrize("what", ["both", "long", "encrypted", "outside"])
def test_odd_packages_are_one_sentence(tmp_path: Path, what: str):
    file = tmp_path / "a.tar.gz"
    if what == "both":
        sdist(file, {"a": "x", "a/b": "y"}, root="")
    elif what == "long":
        sdist(file, {"x" * 300: "y"}, root="")
    elif what == "outside":
        with tarfile.open(file, "w:gz") as archive:
            info = tarfile.TarInfo("link.py")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    else:
        file = tmp_path / "a.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.py", "x = 1")
        data = bytearray(file.read_bytes())
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            data[data.index(mark) + place] |= 1
        file.write_bytes(bytes(data))
    with pytest.raises(UsageError, match=r"is damaged|cannot be unpacked"):
        unpack(tmp_path, str(file))


def test_what_a_job_asks_of_pip_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for wrong in ("numpy", [None], 3):
        with pytest.raises(UsageError, match="not a list of texts"):
            aiplatform.CustomTrainingJob("a", "train.py", "", requirements=wrong)  # type: ignore[arg-type]
    job = aiplatform.CustomTrainingJob("a", "train.py", "", requirements=["x @ https://u:p@host/x"])
    assert not list(tmp_path.rglob("*.txt"))
    with pytest.raises(UsageError, match="no script train"):
        job.run(machine_type="local")
    (file,) = (tmp_path / "runs" / ".requirements").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with pytest.raises(
        UsageError, match=r"environment_variables: \['HF_TOKEN=\*\*\*'\] is no dict"
    ):
        job.run(environment_variables=["HF_TOKEN=canary one"])  # type: ignore[arg-type]


def last_used_8_days_ago(*kept: Path) -> None:
    at_s = time.time() - 8 * 86_400
    for each in kept:
        os.utime(each, (at_s, at_s))


def test_packages_that_no_run_names_go_a_week_after_their_last_use(tmp_path: Path):
    packages = tmp_path / "runs" / ".packages"

    def unpacked(name: str) -> Path:
        """Return the folder of a package, which is made with its first use."""
        package = tmp_path / f"{name}.tar.gz"
        if not package.exists():
            sdist(package, {**SETUP, f"{name}/a.py": ""})
        (folder,) = (each for each in unpack(tmp_path, str(package)) if (each / name).exists())
        return folder

    unused, again, of_a_run, recent = map(unpacked, ("unused", "again", "of_a_run", "recent"))
    left_by_a_killed_process = packages / "tmpabc"
    left_by_a_killed_process.mkdir()
    run = open_run_folder(run_dir=None, name="base", script="task")
    failed_attempt(run, {"rank-0.stderr": ("", 1)})
    run.note_job_request(1, {"source_dir": str(of_a_run)})
    last_used_8_days_ago(unused, again, of_a_run, left_by_a_killed_process)
    unpacked("again")
    assert set(packages.iterdir()) == {unused, again, of_a_run, recent, left_by_a_killed_process}
    new = unpacked("new")
    assert set(packages.iterdir()) == {again, of_a_run, recent, new}
    shutil.rmtree(run.path)
    unpacked("newer")
    assert not of_a_run.exists()


def test_where_a_run_cannot_be_read_nothing_goes(tmp_path: Path):
    (kept,) = unpack(tmp_path, sdist(tmp_path / "a.tar.gz", TASK))
    last_used_8_days_ago(kept)
    (tmp_path / "runs" / "base" / "run.json").mkdir(parents=True)
    assert kept in unpack(tmp_path, sdist(tmp_path / "b.tar.gz", {"b.py": ""}))


def failed_attempt(run: RunFolder, logs: Mapping[str, tuple[str, int]]) -> None:
    """Add an attempt that was started from a command line; logs have texts, and when they ended."""
    with subprocess.Popen(["true"]) as launcher:
        launcher.wait(60)
    attempt = run.start_attempt(
        command=["headrace", "run", "train.py"], argv=["train.py"], world_size=len(logs),
        launcher=launcher.pid,
    )  # fmt: skip
    for name, (text, ended_s) in logs.items():
        log = run.logs(attempt.number) / name
        log.parent.mkdir(exist_ok=True)
        log.write_text(text)
        os.utime(log, (ended_s, ended_s))
    run.end_attempt(attempt.number, 1)


def trace(name: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 1\nValueError: {name}\n'


@pytest.mark.parametrize(
    "logs",
    [
        {"rank-10.stderr": ("ten", 1), "rank-2.stderr": ("the cause", 2)},
        {
            "rank-0.stderr": ("slow", 1), "rank-1.stderr": (trace("stopped"), 9),
            "rank-10.stderr": (trace("the cause"), 8), "rank-10.stdout": (trace("caught"), 2),
        },
        {
            "rank-0.stderr": (trace("before"), 1), "restart-9/rank-0.stderr": (trace("later"), 2),
            "restart-10/rank-0.stderr": ("", 3),
            "restart-10/rank-1.stderr": (trace("the cause"), 4),
        },
        {"gpu-0.stderr": ("fine", 1), "gpu-1.stderr": ("[rank1]: " + trace("the cause"), 2)},
    ],
)  # fmt: skip
def test_a_job_of_a_command_line_has_failed_for_what_the_first_failed_rank_said(
    logs: dict[str, tuple[str, int]],
):
    run = open_run_folder(run_dir=None, name="base", script="train.py")
    failed_attempt(run, logs)
    error = aiplatform.CustomJob.get("base").error
    assert error is not None
    words = error.partition("Its last words:\n")[2].partition("\nAll that it said")[0]
    assert words.splitlines()[-1].removeprefix("ValueError: ") == "the cause"


def test_what_a_launcher_said_of_the_attempt_before_is_none_of_a_command_lines(tmp_path: Path):
    run = open_run_folder(run_dir=None, name="base", script="train.py")
    log = run.path / "launcher.log"
    log.write_text(trace("before"))
    os.utime(log, (1, 1))
    failed_attempt(run, {"rank-0.stderr": (trace("the cause"), 2)})
    assert "ValueError: the cause" in str(aiplatform.CustomJob.get("base").error)
