"""Channels in modes Pipe and Stream: SageMaker's named pipes, and ShardDataset by their folder."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from headrace.data.storage import open_store
from jobs import alive, descendants, eventually, started
from jobs_here import run_job
from packed import pack_images

# As scripts for Pipe mode are written: wait for the epoch's pipe, read it to its end.
SCRIPT = """
import hashlib, os, sys, time
for epoch in range(int(sys.argv[1])):
    path = f"{os.environ['SM_CHANNEL_TRAIN']}_{epoch}"
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as pipe:
        data = pipe.read()
    digest = hashlib.sha256(data).hexdigest()
    print("epoch", os.environ["SM_CURRENT_HOST"], epoch, len(data), digest, flush=True)
"""
SAGEMAKER = ("--profile", "off", "--run-dir", "r", "--contract", "sagemaker", "--input-mode=Pipe")
OBJECTS = {
    "a.bin": os.urandom(100), "b.bin": b"", "deep/c.bin": os.urandom(20 * 2**20),
    "deep/d.bin": os.urandom(2**20 + 1),
}  # fmt: skip
WHOLE = b"".join(OBJECTS.values())


@pytest.fixture
def train(s3_url: str) -> str:
    for name, data in OBJECTS.items():
        open_store(s3_url).put(name, data)
    return f"--channel=train={s3_url}"


def epochs(stdout: str) -> list[tuple[str, int, int, str]]:
    """What scripts have read: the host, the epoch, how many bytes, and their SHA-256."""
    fields = [
        line.partition("epoch ")[2].split() for line in stdout.splitlines() if "epoch " in line
    ]
    return [(host, int(epoch), int(size), digest) for host, epoch, size, digest in fields]


def read(host: str, epoch: int, data: bytes = WHOLE) -> tuple[str, int, int, str]:
    return host, epoch, len(data), hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("flags", [[], ["--input-mode=train=Stream"]])
def test_each_epoch_is_a_pipe_of_all_bytes_in_the_order_of_the_keys(
    job: Path, train: str, flags: list[str]
) -> None:
    ended = run_job(job, *SAGEMAKER, *flags, train, "train.py", "3")
    assert ended.returncode == 0, ended.stderr
    assert epochs(ended.stdout) == [read("algo-1", epoch) for epoch in range(3)]
    tree = job / "r" / "hosts" / "algo-1" / "ml" / "input"
    config = json.loads((tree / "config" / "inputdataconfig.json").read_text())
    assert config["train"]["TrainingInputMode"] == "Pipe"
    assert not (tree / "data" / "train").exists()
    assert not (job / "cache").exists()


def test_a_pipe_has_the_keys_that_begin_so_in_their_order(job: Path, train: str) -> None:
    store = open_store(train.partition("=train=")[2])
    store.put("deep-1", b"before")
    store.put("deeper", b"after")
    ended = run_job(job, *SAGEMAKER, f"{train}/deep", "train.py", "1")
    content = b"before" + OBJECTS["deep/c.bin"] + OBJECTS["deep/d.bin"] + b"after"
    assert epochs(ended.stdout) == [read("algo-1", 0, content)], ended.stderr


def test_local_files_are_piped_too(job: Path) -> None:
    for name, data in OBJECTS.items():
        (job / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (job / "data" / name).write_bytes(data)
    ended = run_job(job, *SAGEMAKER, "--channel=train=data", "train.py", "1")
    assert epochs(ended.stdout) == [read("algo-1", 0)], ended.stderr
    one = run_job(job, *SAGEMAKER, "--channel=train=data/a.bin", "train.py", "2")
    assert epochs(one.stdout) == [read("algo-1", epoch, OBJECTS["a.bin"]) for epoch in range(2)]


def test_hosts_share_the_objects(job: Path, train: str) -> None:
    url = train.partition("=train=")[2]
    spec = json.dumps({"uri": url, "distribution": "ShardedByS3Key"})
    ended = run_job(job, *SAGEMAKER, "--group=gpu=2", f"--channel=train={spec}", "train.py", "2")
    assert ended.returncode == 0, ended.stderr
    data = list(OBJECTS.values())
    shares = {"algo-1": data[0] + data[2], "algo-2": data[1] + data[3]}
    assert sorted(epochs(ended.stdout)) == [
        read(host, epoch, share) for host, share in shares.items() for epoch in range(2)
    ]


def test_who_closes_a_pipe_early_goes_on_with_the_next(job: Path, train: str) -> None:
    early = f"""
import os
with open(os.environ["SM_CHANNEL_TRAIN"] + "_0", "rb") as pipe:
    print("begins", pipe.read(100).hex(), flush=True)
{SCRIPT.replace("in range(int(sys.argv[1]))", "in (1, 2)")}
"""
    (job / "train.py").write_text(early)
    ended = run_job(job, *SAGEMAKER, train, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert f"begins {WHOLE[:100].hex()}\n" in ended.stdout
    assert epochs(ended.stdout) == [read("algo-1", 1), read("algo-1", 2)]


def test_a_rank_that_starts_anew_begins_with_the_first_pipe(job: Path, train: str) -> None:
    failing = f"""{SCRIPT}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(f"{{os.environ['SM_CHANNEL_TRAIN']}}_{{epoch + 1}}", "rb").read(2**21)
    sys.exit(1)
"""
    (job / "train.py").write_text(failing)
    flags = ["--nproc-per-node=1", "--max-restarts=1"]
    ended = run_job(job, *SAGEMAKER, *flags, train, "train.py", "2")
    assert ended.returncode == 0, ended.stderr
    assert epochs(ended.stdout) == [read("algo-1", epoch) for epoch in (0, 1, 0, 1)]


BOTH_READ = """
import os, pathlib, sys, time
def opened(epoch):
    return open(f"{os.environ['SM_CHANNEL_TRAIN']}_{epoch}", "rb")
mine, parent = pathlib.Path("mine"), os.getppid()
before, other = map(int, sys.argv[1:3])
if os.environ["RANK"] == "0":
    for epoch in range(before):
        assert len(opened(epoch).read()) > 2**24
    with opened(before) as pipe:
        pipe.read(1)
        mine.touch()
        while os.getppid() == parent:  # until it is stopped, or the script that started it is
            time.sleep(0.1)
        sys.exit()
while not mine.exists():
    if os.getppid() != parent:
        sys.exit()
    time.sleep(0.01)
print("got", len(opened(other).read()), flush=True)
"""
STARTS_BOTH = """
import os, subprocess, sys
command = [sys.executable, "reads.py", *sys.argv[1:]]
readers = [subprocess.Popen(command, env={**os.environ, "RANK": rank}) for rank in "01"]
for reader in readers:
    reader.wait()
"""


@pytest.mark.parametrize(
    ("ranks", "epochs_before", "opened"),
    [
        (["--nproc-per-node=2"], 1, 1),
        ([], 0, 0),
        ([], 2, 1),
        ([], 2, 0),
    ],
)
def test_two_processes_that_read_one_channels_pipes_are_named_and_stopped(
    job: Path, train: str, ranks: list[str], epochs_before: int, opened: int
) -> None:
    """Ranks of torchrun's, or what a script starts by itself."""
    (job / "reads.py").write_text(BOTH_READ)
    (job / "train.py").write_text(BOTH_READ if ranks else STARTS_BOTH)
    arguments = ("train.py", str(epochs_before), str(opened))
    ended = run_job(job, *SAGEMAKER, *ranks, train, *arguments)
    assert ended.returncode == 1
    assert "two processes of one host have opened train_" in ended.stderr
    assert ", and a pipe has one reader" in ended.stderr
    assert "got" not in ended.stdout  # no half of it passed for the whole


def test_readers_that_inherit_a_pipe_are_one(job: Path, train: str) -> None:
    (job / "train.py").write_text(
        "import os, subprocess, sys\n"
        "with open(os.environ['SM_CHANNEL_TRAIN'] + '_0', 'rb') as pipe:\n"
        "    count = subprocess.run(['wc', '-c'], stdin=pipe, capture_output=True, text=True)\n"
        "print('counted', count.stdout.strip())\n"
    )
    ended = run_job(job, *SAGEMAKER, train, "train.py")
    assert f"counted {len(WHOLE)}\n" in ended.stdout, ended.stderr


WAITS = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
with open(os.environ["SM_CHANNEL_TRAIN"] + "_0", "rb") as pipe:
    pipe.read(100)
    pathlib.Path("reading").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    print("read all", len(pipe.read()), flush=True)
"""


def test_an_object_that_is_replaced_ends_the_job_and_not_the_pipe(
    job: Path, s3_url: str, train: str
) -> None:
    store = open_store(s3_url)
    for number in range(12):  # more than what is fetched ahead
        store.put(f"e/{number:02}.bin", os.urandom(8 * 2**20))
    (job / "train.py").write_text(WAITS.replace("signal.signal", "# "))
    with started(job, *SAGEMAKER, train, "train.py") as process:
        eventually((job / "reading").exists, "a reader")
        store.put("e/11.bin", b"another one")
        (job / "go").touch()
        process.wait(60)
    output = (job / "terminal").read_text()
    assert process.returncode == 1, output
    assert "/e/11.bin: it was replaced after the channel was listed" in output
    assert "read all" not in output


@pytest.mark.parametrize("ranks", [["--nproc-per-node=1"], ["--group=gpu=1"]])
def test_a_writer_that_is_killed_fails_the_job(job: Path, train: str, ranks: list[str]) -> None:
    waits_on = "open(os.environ['SM_CHANNEL_TRAIN'] + '_1').read()\n"  # which nobody writes to
    (job / "train.py").write_text(WAITS.replace("signal.signal", "# ") + waits_on)
    with started(job, *SAGEMAKER, *ranks, train, "train.py") as process:
        eventually((job / "reading").exists, "a reader")
        (writer,) = [
            pid
            for pid in descendants(process.pid)
            if b"channels.pipe.epoch_pipes" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(writer, signal.SIGKILL)
        (job / "go").touch()
        process.wait(60)
    assert process.returncode == 1
    assert (
        "The process that writes channels to their pipes was killed"
        in (job / "terminal").read_text()
    )


def test_nothing_is_left_of_a_job_that_is_stopped(job: Path, train: str) -> None:
    (job / "train.py").write_text(WAITS.replace("signal.signal", "# "))
    with started(job, *SAGEMAKER, train, "train.py") as process:
        eventually((job / "reading").exists, "a reader")
        below = descendants(process.pid)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    eventually(lambda: not any(map(alive, below)), "the end of all processes")


def test_a_later_attempt_finds_no_pipes_of_an_earlier_one(job: Path, train: str) -> None:
    run_job(job, *SAGEMAKER, train, "train.py", "3")
    data = job / "r" / "hosts" / "algo-1" / "ml" / "input" / "data"
    assert {"train_2", "train_3"} <= {path.name for path in data.iterdir()}
    (job / "train.py").write_text("import os; print(sorted(os.listdir('/opt/ml/input/data')))\n")
    ended = run_job(job, *SAGEMAKER, train, "train.py")
    assert ended.stdout == "['code', 'train_0']\n", ended.stderr


def test_a_channel_that_is_called_as_a_pipe_is_refused(job: Path, train: str) -> None:
    ended = run_job(job, *SAGEMAKER, train, train.replace("train", "train_0", 1), "train.py", "1")
    assert ended.returncode == 2
    assert "--channel train_0=...: in mode Pipe that is a pipe of channel train" in ended.stderr


READS_SHARDS = """
import os, sys
import headrace
dataset = headrace.ShardDataset(os.environ[sys.argv[1]])
print("samples", len(dataset), [dataset[number]["__key__"] for number in range(len(dataset))])
"""


def test_shards_are_read_where_they_are_by_the_channels_own_name(job: Path, s3_url: str) -> None:
    pack_images(job / "images", s3_url, 40)
    (job / "train.py").write_text(READS_SHARDS)
    seen = {}
    for contract, mode, variable in (
        ("sagemaker", "File", "SM_CHANNEL_TRAINING"),
        ("sagemaker", "Stream", "SM_CHANNEL_TRAINING"),
        ("vertex", "Stream", "AIP_TRAINING_DATA_URI"),
    ):
        ended = run_job(
            job,
            "--profile",
            "off",
            "--contract",
            contract,
            f"--input-mode={mode}",
            f"--channel=training={s3_url}",
            "train.py",
            variable,
        )
        assert ended.returncode == 0, ended.stderr
        seen[contract, mode] = ended.stdout
    assert seen["sagemaker", "File"].startswith("samples 40 [")
    assert len(set(seen.values())) == 1


@pytest.mark.parametrize(
    ("bucket", "message"),
    [("", "there is no object there"), ("s3://none", "s3://none")],
)
def test_what_cannot_be_read_is_reported_before_the_script_starts(
    job: Path, s3_url: str, bucket: str, message: str
) -> None:
    url = bucket or f"{s3_url}/nothing"
    ended = run_job(job, *SAGEMAKER, f"--channel=train={url}", "train.py", "1")
    assert ended.returncode in {1, 2}
    assert message in ended.stderr
    assert "epoch" not in ended.stdout
