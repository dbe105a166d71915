"""Scripts whose channels lie in object storage: each finds a folder of files."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
from s3_server import S3Server
from slow_proxy import slow_proxy

from headrace.data.storage import open_store
from jobs import alive, attempts_of, descendants, eventually, started
from jobs_here import run_job
from services.object_servers import PlainWebHandler, object_server

SCRIPT = """
import hashlib, json, os, pathlib
print("here", os.environ["SM_CURRENT_HOST"], flush=True)
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
for path in sorted(folder.rglob("*")):
    if path.is_file():
        data = path.read_bytes()
        print("file", path.relative_to(folder), hashlib.sha256(data).hexdigest()[:8], flush=True)
config = pathlib.Path("/opt/ml/input/config/inputdataconfig.json")
if config.exists():
    print("inputs:", json.dumps(json.loads(config.read_text())), flush=True)
"""
REPLACES = """
import os
from headrace.data.storage import open_store
open_store(os.environ["TRAIN_URL"]).put("a.txt", b"another one")
print(open(os.environ["SM_CHANNEL_TRAIN"] + "/a.txt").read(), flush=True)
"""


@pytest.fixture
def train_url(s3_url: str) -> str:
    for name in ("a.txt", "deep/b.txt", "deep/ü c.txt"):
        open_store(s3_url).put(name, name.encode())
    return s3_url


@pytest.fixture
def many_url(s3_server: S3Server, s3_url: str) -> str:
    """More objects than are copied at once, put by the first test that wants them."""
    url = f"s3://{s3_server.bucket}/many"
    store = open_store(url)
    if not list(store.list()):
        for number in range(300):
            store.put(f"{number}.bin", os.urandom(1000))
    return url


SAGEMAKER = ("--profile", "off", "--contract", "sagemaker")
FILES = ["a.txt", "deep/b.txt", "deep/ü c.txt"]


def files_in(stdout: str) -> list[str]:
    """The files that one or more scripts saw, in the order of their names."""
    lines = [line.partition("file ")[2] for line in stdout.splitlines() if "file " in line]
    return sorted(line.rpartition(" ")[0] for line in lines)


def test_a_channel_in_object_storage_is_a_folder_of_files(job: Path, train_url: str) -> None:
    channel = ["--channel", f"train={train_url}"]
    ended = run_job(job, *SAGEMAKER, "--nproc-per-node", "1", *channel, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert files_in(ended.stdout) == FILES
    assert f"headrace: channel train: 3 objects, 28 B, of {train_url}: copied in" in ended.stderr
    again = run_job(job, *SAGEMAKER, *channel, "train.py")
    assert again.stdout == ended.stdout
    assert "28 B, of " in again.stderr
    assert ": here already\n" in again.stderr


def test_json_says_more_of_a_channel_and_the_script_gets_it(job: Path, train_url: str) -> None:
    spec = {
        "uri": train_url, "mode": "Cache", "distribution": "ShardedByKey",
        "content_type": "text/plain",
    }  # fmt: skip
    ended = run_job(
        job, *SAGEMAKER, "--channel", f"train={json.dumps(spec)}", "--cache-dir", "shared",
        "--cache-limit", "1GB", "train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert files_in(ended.stdout) == FILES
    if "inputs:" in ended.stdout:
        (line,) = [line for line in ended.stdout.splitlines() if line.startswith("inputs:")]
        assert json.loads(line.removeprefix("inputs: "))["train"] == {
            "TrainingInputMode": "File", "S3DistributionType": "ShardedByS3Key",
            "RecordWrapperType": "None", "ContentType": "text/plain",
        }  # fmt: skip
    assert list((job / "shared").glob("trees/*/complete"))
    assert not (job / "cache").exists()


def test_caches_may_lie_in_the_home_folder_and_in_no_bucket(job: Path, train_url: str) -> None:
    own = {"HOME": str(job / "home"), "HEADRACE_CACHE_DIR": "~/usual"}
    channel = ("--channel", f"train={train_url}")
    for flags in ((), ("--input-mode=Cache", "--cache-dir=~/own")):
        ended = run_job(job, *SAGEMAKER, *channel, *flags, "train.py", **own)
        assert ended.returncode == 0, ended.stderr
        assert files_in(ended.stdout) == FILES
    assert list((job / "home").glob("usual/channels/trees/*/complete"))
    assert list((job / "home").glob("own/trees/*/complete"))
    flags = ("--input-mode=Cache", "--cache-dir=s3://bucket/cache")
    refused = run_job(job, *SAGEMAKER, *channel, *flags, "train.py", **own)
    assert refused.returncode == 2
    assert "--cache-dir=s3://bucket/cache: a cache lies in a folder of this host" in refused.stderr
    assert not (job / "~").exists()


def test_hosts_of_the_channels_groups_share_its_objects(job: Path, train_url: str) -> None:
    for name in FILES:
        (job / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (job / "data" / name).write_text(name)
    flags = []
    for name, uri in (("remote", train_url), ("local", "data")):
        channel = {"uri": uri, "distribution": "ShardedByS3Key", "groups": ["gpu"]}
        flags += ["--channel", f"{name}={json.dumps(channel)}"]
    (job / "train.py").write_text(
        "import os, pathlib\n"
        "for name in ('REMOTE', 'LOCAL'):\n"
        "    folder = os.environ.get(f'SM_CHANNEL_{name}')\n"
        "    assert (folder is not None) == (os.environ['SM_CURRENT_INSTANCE_GROUP'] == 'gpu')\n"
        "    for path in pathlib.Path(folder).rglob('*.txt') if folder else ():\n"
        "        text = path.relative_to(folder).as_posix()\n"
        "        assert path.read_text() == text\n"
        "        print(name, 'file', text, '-', flush=True)\n"
    )
    ended = run_job(
        job,
        *SAGEMAKER,
        "--engine",
        "local",
        "--group",
        "gpu=2:cpus=1",
        "--group",
        "cpu=1:cpus=1",
        *flags,
        "train.py",
    )
    assert ended.returncode == 0, ended.stderr
    for name in ("REMOTE", "LOCAL"):
        lines = [line for line in ended.stdout.splitlines() if f" {name} file " in line]
        assert files_in("\n".join(lines)) == FILES
        shares = [sum(f"/gpu-{host}]" in line for line in lines) for host in (0, 1)]
        assert sorted(shares) == [1, 2], ended.stdout


def test_an_object_replaced_while_the_job_ran_is_named_at_its_end(
    job: Path, train_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAIN_URL", train_url)
    (job / "train.py").write_text(REPLACES)
    ended = run_job(job, *SAGEMAKER, "--channel", f"train={train_url}", "train.py")
    assert (ended.returncode, ended.stdout) == (0, "a.txt\n"), ended.stderr
    warning = "headrace: warning: channel train: 1 object was replaced or removed at"
    assert warning in ended.stderr
    assert "before: a.txt\n" in ended.stderr


@pytest.mark.parametrize("flags", [[], ["--nproc-per-node", "1"]])
def test_ctrl_c_ends_the_copying_at_once_and_leaves_nothing_running(
    flags: list[str],
    job: Path,
    s3_server: S3Server,
    many_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with slow_proxy(s3_server.endpoint, latency_ms=500) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        command = [*SAGEMAKER, *flags, "--channel", f"train={many_url}", "train.py"]
        with started(job, *command) as process:
            eventually(lambda: list(job.glob("cache/channels/objects/*/*")), "an object")
            below = descendants(process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            eventually(lambda: not any(map(alive, below)), "everything has ended")
    terminal = (job / "terminal").read_text()
    assert "interrupted while channels were copied; what is whole stays" in terminal
    assert "Traceback" not in terminal
    assert "here " not in terminal


def test_ctrl_c_ends_hosts_that_wait_for_another_ones_copy(
    job: Path, s3_server: S3Server, many_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = f'--channel=train={{"uri": "{many_url}", "groups": ["gpu"]}}'
    with slow_proxy(s3_server.endpoint, latency_ms=500) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        command = [*SAGEMAKER, "--group=gpu=1", "--group=cpu=1", channel, "train.py"]
        with started(job, *command) as process:
            eventually(lambda: list(job.glob("cache/channels/objects/*/*")), "an object")
            eventually(lambda: list(job.glob("runs/*/hosts/algo-2/ml")), "the other is ready")
            below = descendants(process.pid)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            eventually(lambda: not any(map(alive, below)), "everything has ended")
    terminal = (job / "terminal").read_text()
    assert "Traceback" not in terminal
    assert "here " not in terminal


@pytest.mark.parametrize("flags", [[], ["--nproc-per-node", "1"]])
def test_the_longest_time_of_a_job_counts_the_copying_of_its_channels(
    flags: list[str],
    job: Path,
    s3_server: S3Server,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_store(s3_url).put("a.bin", b"a")
    with slow_proxy(s3_server.endpoint, latency_ms=60_000) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        command = [*SAGEMAKER, *flags, "--name=a", "--max-run=3", "--channel", f"train={s3_url}"]
        with started(job, *command, "train.py") as process:
            eventually((job / "runs" / "a" / "run.json").exists, "the run begins")
            below = descendants(process.pid)
            # A signal that ends a process by default, or what a shell makes of it.
            assert process.wait(50) in {-signal.SIGTERM, 128 + signal.SIGTERM}
            eventually(lambda: not any(map(alive, below)), "everything has ended")
    terminal = (job / "terminal").read_text()
    assert "--max-run: 3 s are over" in terminal
    assert "here " not in terminal
    (attempt,) = attempts_of(job / "runs" / "a")
    assert (attempt["reason"], attempt["exit_code"]) == ("MaxRuntimeExceeded", 143)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--channel=train={url}/none"], "there is no object there, nor any below it"),
        (["--channel=train=s3://no-such-bucket/a"], "the bucket does not exist"),
        (["--channel=train=no/such/folder"], "there is no "),
        (["--channel=train={url}", "--input-mode=file"], "Did you mean File?"),
        (["--channel=train={url}", "--input-mode=train=Cach"], "Did you mean Cache?"),
        (["--channel=train={url}", "--input-mode=tran=File"], "Did you mean train?"),
        (["--channel=train={url}", "--input-mode=Cache"], "Name one: --cache-dir FOLDER"),
        (["--channel=train={url}", "--cache-limit=10XB"], "--cache-limit: '10XB' is not a size"),
        (["--channel=train={url}", "--cache-limit=10B"], "are more than the cache may hold (10 B)"),
        (['--channel=train={"uri": "{url}"'], "what begins with '{' is JSON, and this is none"),
        (['--channel=train={"url": "{url}"}'], "Did you mean uri?"),
        (['--channel=train={"mode": "File"}'], "where are its data?"),
        (['--channel=train={"uri": "{url}", "distribution": "ShardedByS3key"}'], "ShardedByS3Key?"),
        (['--channel=train={"uri": "{url}", "groups": "gpu"}'], "groups is a list of names"),
        (['--channel=train={"uri": "{url}", "groups": ["gpus"]}'], "instance group gpus, and"),
        (["--channel=../x={url}"], "a channel's name has letters"),
    ],
)
def test_a_channel_that_cannot_be_is_refused_before_the_script_starts(
    flags: list[str], message: str, job: Path, train_url: str
) -> None:
    filled = [flag.replace("{url}", train_url) for flag in flags]
    ended = run_job(job, *SAGEMAKER, *filled, "train.py")
    assert ended.returncode in {1, 2}
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "here" not in ended.stdout


def test_what_is_wrong_for_all_hosts_is_reported_once_and_none_of_them_starts(
    job: Path, train_url: str
) -> None:
    channel = f"--channel=train={train_url}/none"
    ended = run_job(job, *SAGEMAKER, "--group=gpu=2", channel, "train.py")
    assert ended.returncode == 2
    assert ended.stderr.count("there is nothing") == 1
    assert "[gpu/" not in ended.stderr


def test_what_every_host_refuses_is_reported_once(job: Path) -> None:
    channel = '--channel=train={"uri": ".", "groups": ["gpuu"]}'
    ended = run_job(job, *SAGEMAKER, "--group=gpu=2", "--group=cpu=1", channel, "train.py")
    assert ended.returncode == 2
    assert ended.stderr.count("gpuu") == 1
    assert ended.stdout == ""


def test_secrets_of_a_url_are_not_printed(job: Path) -> None:
    url = "http://user:s3cret@127.0.0.1:9/data/x.bin?X-Amz-Signature=s3cret"
    ended = run_job(job, *SAGEMAKER, "--name", "a", "--channel", f"train={url}", "train.py")
    assert ended.returncode == 1
    assert "http://127.0.0.1:9/data/x.bin: nothing listens at the endpoint" in ended.stderr
    assert "s3cret" not in ended.stderr
    assert "s3cret" not in (job / "runs" / "a" / "run.json").read_text()


@pytest.fixture
def beginnings_url(s3_url: str) -> str:
    """Keys that begin alike, in folders and beside them."""
    for name in ("train/x", "train/deep/y", "train-a.csv", "train-a.csv.gz", "train2/z", "trai",
                 "dup/dup-1", "dup-1"):  # fmt: skip
        open_store(s3_url).put(name, name.encode())
    return s3_url


WALKS = """
import os, pathlib
for name in sorted(os.environ):
    if name.startswith("SM_CHANNEL_"):
        folder = pathlib.Path(os.environ[name])
        found = {str(path.relative_to(folder)): path.read_text()
                 for path in folder.rglob("*") if path.is_file()}
        print(name[11:], sorted(found.items()), flush=True)
"""


def test_a_channel_is_a_key_prefix_with_names_as_on_sagemaker(
    job: Path, beginnings_url: str
) -> None:
    """Names as sagemaker-python-sdk issue 3612 describes those of remote jobs."""
    (job / "train.py").write_text(WALKS)
    channels = {"A": "train", "B": "train/", "C": "train-a.csv", "D": "tra", "E": "train/x"}
    flags = [f"--channel={name}={beginnings_url}/{end}" for name, end in channels.items()]
    ended = run_job(job, *SAGEMAKER, *flags, "train.py")
    inside = [("deep/y", "train/deep/y"), ("x", "train/x")]
    beside = [(name, name) for name in ("train-a.csv", "train-a.csv.gz", "train2/z")]
    whole = [(name, name) for name in ("trai", "train-a.csv", "train-a.csv.gz", "train/deep/y",
                                       "train/x", "train2/z")]  # fmt: skip
    assert ended.stdout.splitlines() == [
        f"A {sorted(inside + beside)}", f"B {inside}", f"C {beside[:2]}", f"D {whole}",
        "E [('x', 'train/x')]",
    ], ended.stderr  # fmt: skip
    assert "so that it has train-a.csv, train-a.csv.gz, train2/z too; s3://" in ended.stderr
    assert "so that it has train-a.csv.gz too\n" in ended.stderr
    assert ended.stderr.count("is the beginning of keys") == 2
    again = run_job(job, *SAGEMAKER, flags[0], "train.py")
    assert again.stdout.splitlines() == ended.stdout.splitlines()[:1]
    assert "here already" in again.stderr
    plan = run_job(job, *SAGEMAKER, *flags, "--dry-run", "train.py").stdout
    assert [line.split()[0] for line in plan.splitlines() if " object" in line] == list("52261")


@pytest.mark.parametrize(("refusal", "size"), [(0, 10), (403, 10), (405, 3 * 2**20), (501, 10)])
def test_one_file_of_a_plain_web_server_is_a_channel_and_is_counted(
    job: Path, refusal: int, size: int
) -> None:
    data = os.urandom(size)
    with object_server(type("Plain", (PlainWebHandler,), {"refusal": refusal})) as server:
        open_store(f"{server.endpoint}/files").put("a b.bin", data)
        channel = f"--channel=train={server.endpoint}/files/a%20b.bin?signature=1"
        plan = run_job(job, *SAGEMAKER, channel, "--dry-run", "train.py")
        ended = run_job(job, *SAGEMAKER, channel, "train.py")
    assert plan.returncode == 0, plan.stderr
    assert " 1 object, " in plan.stdout
    assert ended.returncode == 0, ended.stderr
    assert files_in(ended.stdout) == ["a b.bin"]
    assert hashlib.sha256(data).hexdigest()[:8] in ended.stdout


def test_a_dry_run_counts_the_files_of_local_folders_behind_links_too(job: Path) -> None:
    deep = job / "stored" / "deep"
    deep.mkdir(parents=True)
    for name in ("1.bin", "2.bin"):
        (deep / name).write_bytes(b"x" * 10)
    links = {
        "linked/one": "../stored", "linked/two": "../stored/deep", "whole": "stored",
        "files/1.bin": "../stored/deep/1.bin", "files/none": "nowhere", "files/self": "self",
        "looped/again": "../looped", "looped/deep": "../stored/deep", "file": "stored/deep/1.bin",
    }  # fmt: skip
    for name, target in links.items():
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).symlink_to(target)
    counts = {"stored": 2, "linked": 4, "whole": 2, "files": 1, "looped": 2, "file": 1}
    flags = [f"--channel={name}={name}" for name in sorted(counts)]
    ended = run_job(job, *SAGEMAKER, *flags, "--dry-run", "train.py")
    lines = [line.split() for line in ended.stdout.splitlines() if " object" in line]
    assert [int(words[0]) for words in lines] == [counts[name] for name in sorted(counts)]
    assert [int(words[2]) for words in lines] == [10 * counts[name] for name in sorted(counts)]


def test_two_keys_of_a_prefix_that_would_be_one_file_are_refused(
    job: Path, beginnings_url: str
) -> None:
    ended = run_job(job, *SAGEMAKER, f"--channel=train={beginnings_url}/dup", "train.py")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "'dup-1' and 'dup/dup-1' would both be the file dup-1. Rename one" in ended.stderr


def test_hosts_share_the_keys_of_a_prefix_in_their_order(job: Path, beginnings_url: str) -> None:
    spec = json.dumps({"uri": f"{beginnings_url}/train", "distribution": "ShardedByS3Key"})
    (job / "train.py").write_text(WALKS)
    ended = run_job(job, *SAGEMAKER, "--group=a=2", f"--channel=train={spec}", "train.py")
    shares = [line.split("TRAIN ")[1] for line in sorted(ended.stdout.splitlines())]
    assert shares == [
        "[('deep/y', 'train/deep/y'), ('train-a.csv', 'train-a.csv'), ('train2/z', 'train2/z')]",
        "[('train-a.csv.gz', 'train-a.csv.gz'), ('x', 'train/x')]",
    ], ended.stderr
