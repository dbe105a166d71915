"""`headrace data` as a user meets it: its output and exit codes, and that of real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from data_verbs import run_data_verb
from headrace import DataLoader
from headrace.cli.main import build_app
from headrace.cli.progress_view import ProgressView
from headrace.data.shards.pack import pack
from headrace.data.shards.reports import PackProgress
from headrace.data.shards.shard_packer import PackOptions
from image_trees import class_folders, contents, write

HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


def headrace(*arguments: str | Path, code: int = 0, **environment: str) -> tuple[str, str]:
    """Run a command line on local files within this process; return what it writes."""
    assert arguments[0] == "data"
    outcome = run_data_verb(Path.cwd(), *arguments[1:], **{"COLUMNS": "80"} | environment)
    return checked(outcome, code)


def headrace_process(*arguments: str | Path, code: int = 0, **environment: str) -> tuple[str, str]:
    """Run a command line as a process of its own; return what it writes."""
    outcome = subprocess.run(
        [*HEADRACE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "80"} | environment,
    )
    return checked(outcome, code)


def checked(outcome: subprocess.CompletedProcess[str], code: int) -> tuple[str, str]:
    assert outcome.returncode == code, outcome.stderr
    assert "Traceback" not in outcome.stderr
    return outcome.stdout, outcome.stderr


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    class_folders(folder / "src", each=6)
    headrace_process("data", "pack", folder / "src", folder / "dst", "--shard-size", "8kB")
    return folder


def test_a_packed_dataset_reports_what_it_is(packed):
    text, _ = headrace("data", "info", packed / "dst")
    for words in ("samples      12", "files        24 (cls, jpg)", "classes      2 (cat, dog)"):
        assert words in text
    content = json.loads(headrace("data", "info", packed / "dst", "--json")[0])
    assert (content["num_samples"], content["num_shards"], content["layout"]) == (12, 3, "tar")
    assert len(content["fingerprint"]) == 32


def test_lint_says_so_and_exits_with_1_where_there_are_faults(packed, tmp_path):
    text, _ = headrace("data", "lint", packed / "dst")
    assert "no faults in 3 shards, 12 samples, 24 files" in text
    write(tmp_path, contents(packed / "dst"))
    (tmp_path / "000000.tar").unlink()
    text, _ = headrace("data", "lint", tmp_path, code=1)
    assert "missing    000000.tar: the shard does not exist." in text
    content = json.loads(headrace_process("data", "lint", tmp_path, "--json", code=1)[0])
    assert [fault["kind"] for fault in content["faults"]] == ["missing"]


def test_cat_shows_a_sample_or_gives_a_members_bytes(packed):
    text, _ = headrace("data", "cat", packed / "dst", "cat/cat_003")
    assert "cat/cat_003 (sample" in text
    assert "cls              1 B  0" in text
    image = subprocess.run(
        [*HEADRACE, "data", "cat", packed / "dst", "cat/cat_003.jpg"],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    assert image == (packed / "src/cat/cat_003.JPEG").read_bytes()
    content = json.loads(headrace("data", "cat", packed / "dst", "cat/cat_003", "--json")[0])
    assert [member["text"] for member in content["members"]] == ["0", None]
    assert "has no sample 'cat/none'" in headrace(
        "data", "cat", packed / "dst", "cat/none", code=1
    )[1]  # fmt: skip
    _, error = headrace("data", "cat", packed / "dst", "cat/cat_003.png", code=1)
    assert "has no member .png; it has cls, jpg" in error


def test_indexing_in_place_and_elsewhere(packed, tmp_path):
    text, _ = headrace("data", "index", packed / "src", "--to", tmp_path / "index")
    assert "shards       every sample is one (loose objects)" in text
    assert f"data         {packed / 'src'}" in text
    content = json.loads(headrace("data", "info", tmp_path / "index", "--json")[0])
    assert (content["num_shards"], content["layout"]) == (12, "objects")


def test_packing_shrinks_and_prints_json(packed, tmp_path):
    text, _ = headrace(
        "data", "pack", packed / "src", tmp_path / "dst", "--resize-short", "16", "--json"
    )
    content = json.loads(text)
    assert (content["num_recoded"], content["already"]) == (12, False)


def test_bad_files_are_listed_and_the_code_is_1(packed, tmp_path):
    write(tmp_path / "src", contents(packed / "src") | {"cat/zero.jpg": b""})
    _, error = headrace("data", "pack", tmp_path / "src", tmp_path / "dst", code=1)
    assert "headrace: " in error
    assert "cat/zero.jpg: 0 bytes" in error
    text, _ = headrace("data", "pack", tmp_path / "src", tmp_path / "dst", "--max-bad", "1")
    assert "left out     1 unreadable:\n  cat/zero.jpg: 0 bytes" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["pack", "only-source"],
        ["pack", "a", "b", "--workers", "0"],
        ["pack", "a", "b", "--no-such-flag"],
        ["info"],
        ["nonsense"],
    ],
)
def test_wrong_arguments_exit_with_2(arguments):
    assert CliRunner().invoke(build_app(), ["data", *arguments]).exit_code == 2


@pytest.mark.parametrize("arguments", [["a", "b", "--image-glob", "*.jpg"], ["nothing://a", "b"]])
def test_arguments_that_do_not_fit_exit_with_2(arguments):
    _, error = headrace("data", "pack", *arguments, code=2)
    assert len(error.splitlines()) == 1


def test_a_refused_bucket_is_one_line_without_secrets(s3_url):
    _, error = headrace_process(
        "data", "info", s3_url, code=1, AWS_SECRET_ACCESS_KEY="secret-canary"
    )
    assert len(error.splitlines()) == 1
    assert s3_url in error
    assert "canary" not in error


@pytest.mark.parametrize("verb", ["pack", "index", "info", "lint", "cat"])
def test_help_has_one_example(verb):
    text = CliRunner().invoke(build_app(), ["data", verb, "--help"]).output
    assert text.count(f"Example: headrace data {verb}") == 1


def test_shells_complete_verbs():
    text, _ = headrace_process(
        "data",
        _HEADRACE_COMPLETE="complete_bash", COMP_WORDS="headrace data li", COMP_CWORD="2",
    )  # fmt: skip
    assert "lint" in text


@pytest.mark.parametrize(
    ("verb", "advice"),
    [
        ("pack", " Run the same command again to go on."),
        ("index", " Nothing is indexed; the next run begins anew."),
        ("lint", ""),
    ],
)
def test_ctrl_c_ends_it_at_once_with_130_and_leaves_no_process(tmp_path, verb, advice):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a store that never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/slow.jpg"
        (tmp_path / "t.csv").write_text(f"url,label\n{url},1\n")
        where = [tmp_path / "t.csv", tmp_path / "dst"] if verb == "pack" else [url]
        process = subprocess.Popen(
            [*HEADRACE, "data", verb, *where],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        connection, _ = silent.accept()
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)  # all who hold the pipes are gone
        connection.close()
    assert process.returncode == 130
    *progress, last = error.splitlines()
    assert last == f"headrace: interrupted.{advice}"
    # After two seconds without an answer there is a line of progress.
    assert all(re.match(r"[a-z]+: ", line) for line in progress)


def test_ctrl_c_reaches_no_process_that_is_just_starting(tmp_path):
    """Neither those that pack nor the server of a loader's workers, from the first moment on."""
    masks: dict[int, int] = {}
    here = psutil.Process()
    before = {child.pid for child in here.children()}

    def look(_: object = None) -> None:
        for child in here.children():
            if child.pid not in before and "resource_tracker" not in " ".join(child.cmdline()):
                status = Path(f"/proc/{child.pid}/status").read_text()
                masks[child.pid] = int(status.partition("SigBlk:")[2].split()[0], 16)

    loader = DataLoader(range(4), num_workers=1)
    look()
    class_folders(tmp_path / "src", each=3)
    options = PackOptions(shard_bytes=1, workers=2)
    pack(str(tmp_path / "src"), str(tmp_path / "dst"), options, progress=look)
    assert len(masks) >= 2
    assert all(mask >> (signal.SIGINT - 1) & 1 for mask in masks.values())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    del loader


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", "", "dst"), ("pack", "src", ""), ("pack", "src", "dst", "--classes-from", ""),
        ("index", ""), ("index", "src", "--to", ""), ("info", ""),
    ],
)  # fmt: skip
def test_an_empty_url_is_not_the_working_folder(tmp_path, arguments):
    class_folders(tmp_path / "src", each=1)
    before = contents(tmp_path)
    ended = run_data_verb(tmp_path, *arguments)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "is empty. Is a variable unset?" in ended.stderr
    assert contents(tmp_path) == before


def test_progress_is_plain_lines_where_there_is_no_terminal(capfd):
    progress = PackProgress(stage="packing", samples=50, of_samples=200, read_bytes=10**6, bad=2)
    ProgressView(0, 0).show(progress, 0)
    assert capfd.readouterr().err == "packing: 50/200, 2 bad\n"
    ProgressView(2, 0).show(progress, 1.9)
    assert capfd.readouterr().err == ""


def test_a_terminal_gets_a_bar_with_rate_and_time_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes what it writes to for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    view = ProgressView(0, 0)
    # The rate counts from the first samples on, so two reports of some are needed.
    for samples in (0, 25, 50):
        progress = PackProgress(
            stage="packing", samples=samples, of_samples=200, read_bytes=samples * 10**5
        )
        view.show(progress, samples / 25)
    view.end()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)
    assert re.search(r"packing .* 50/200, 25/s, 2\.38 MiB/s, 6 s left", shown)


def test_the_rate_counts_from_the_first_samples_of_this_run_on():
    view = ProgressView(0, 0)
    begun = PackProgress(stage="packing", samples=100, of_samples=400, resumed=100)
    later = PackProgress(
        stage="packing", samples=200, of_samples=400, resumed=100, read_bytes=50 * 2**20
    )
    view.show(begun, 5)
    numbers = view.numbers(later, 15)
    assert numbers == ["200/400", "10/s", "5 MiB/s", "20 s left"]
