"""Channels with files that the user may not read: refused before the script starts, by name.

Root may read everything, so there the jobs run without the capabilities by which it may.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server

from jobs import DEADLINE_S, clean_environment
from jobs_here import run_job

_READS_ALL = "-dac_override,-dac_read_search"
SCRIPT = """
import os
folder = os.environ["SM_CHANNEL_TRAIN"]
print("here", sorted(os.listdir(folder)), open(os.path.join(folder, "a.txt")).read(), flush=True)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """A folder with a script and a channel's data."""
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        (tmp_path / "images" / name).write_text("a picture")
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path
    for folder in ("images", "images/deep", "closed"):
        if (tmp_path / folder).exists():
            (tmp_path / folder).chmod(0o755)  # pytest is to remove it


def as_usual_user() -> list[str]:
    """The command before a command by which it may read what anybody may, and no more."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--bounding-set={_READS_ALL}", f"--inh-caps={_READS_ALL}"]


# Several jobs, one after the other, by one process that may read what anybody may.
RUNS_EACH = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from jobs_here import run_job

def run(*flags, data="images"):
    job = ["--profile", "off", "--contract", "sagemaker", *flags, f"--channel=train={data}"]
    return run_job(Path.cwd(), *job, "train.py")

ends = {}
for name, *flags in json.loads(sys.argv[2]):
    Path("images", name).chmod(0)
    ends[name] = run(*flags)
    Path("images", name).chmod(0o755)
Path("images/gone.txt").symlink_to("nowhere")
Path("images/loop.txt").symlink_to("loop.txt")
ends["links that lead nowhere"] = run()
Path("closed").mkdir()
Path("closed/x.txt").write_text("a picture")
Path("images/x.txt").symlink_to(Path("closed/x.txt").resolve())
Path("closed").chmod(0)
ends["a link into a folder"] = run()
ends["in a closed folder"] = run(data="closed/x.txt")
ends["in a closed folder, on two hosts"] = run("--group=gpu=2", data="closed")
ends["a name that is too long"] = run(data="x" * 300)
print("ENDS", json.dumps({name: [end.returncode, end.stdout, end.stderr]
                          for name, end in ends.items()}))
"""


def test_what_may_not_be_read_is_named_and_the_job_refused(job: Path) -> None:
    cases = [
        ("",),
        ("b.txt",),
        ("deep",),
        ("deep/c.txt", "--nproc-per-node=1"),
        ("a.txt", "--group=gpu=2"),
    ]
    command = [sys.executable, "-c", RUNS_EACH, str(Path(__file__).parents[2]), json.dumps(cases)]
    ended = subprocess.run(
        [*as_usual_user(), *command],
        cwd=job,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=clean_environment(),
    )
    assert ended.returncode == 0, ended.stderr
    ends = json.loads(ended.stdout.rpartition("ENDS ")[2])
    for name, *_ in cases:
        code, stdout, stderr = ends[name]
        assert code == 2, stderr
        remedy = f"Run `chmod -R +rX {job / 'images'}`.\n"
        assert stderr.count(f"images: {job / 'images' / name} may not be read. {remedy}") == 1
        assert "Traceback" not in stderr
        assert "here" not in stdout
    code, stdout, stderr = ends["links that lead nowhere"]  # are as the script finds them
    assert code == 0, stderr
    assert "here ['a.txt', 'b.txt', 'deep', 'gone.txt', 'loop.txt'] a picture\n" in stdout
    code, _, stderr = ends["a link into a folder"]  # which may not be entered: it is unreadable
    assert code == 2, stderr
    assert "images/x.txt may not be read" in stderr
    unreadable = {
        "in a closed folder": f"{job}/closed/x.txt cannot be read: Permission denied. ",
        "in a closed folder, on two hosts": f"{job}/closed may not be read. ",
        "a name that is too long": "cannot be read: File name too long. ",
    }
    for name, why in unreadable.items():
        code, _, stderr = ends[name]
        assert code == 2, stderr
        assert why in stderr
        assert "Traceback" not in stderr


def test_so_many_entries_are_asked_about_and_no_more(job: Path) -> None:
    (job / "images" / "deep" / "c.txt").chmod(0)
    # Three entries come before it: a folder's own are named before those of the folders in it.
    asked = (
        "import pathlib\n"
        "from headrace.data.channels.resolve import first_unreadable\n"
        "for most in (3, 4):\n"
        "    print(first_unreadable(pathlib.Path('images'), most=most))\n"
    )
    ended = subprocess.run(
        [*as_usual_user(), sys.executable, "-c", asked], cwd=job, env=clean_environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == "None\nimages/deep/c.txt\n"


def test_objects_that_may_not_be_read_are_refused(
    tmp_path: Path, s3_server: S3Server, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = ["--profile", "off", "--contract", "sagemaker", "--channel", f"train={s3_url}"]
    ended = run_job(tmp_path, *flags, "train.py", AWS_SECRET_ACCESS_KEY="another")
    assert ended.returncode == 1
    assert "403 SignatureDoesNotMatch. Renew or correct the credentials." in ended.stderr
    assert "here" not in ended.stdout
