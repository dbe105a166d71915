"""`headrace.Estimator`: real jobs, from fit to the end, whoever ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import Estimator, open_run
from headrace.core.errors import LaunchError, RecordsError, UsageError
from headrace.sagemaker import (
    FileSystemInput,
    FrameworkProfile,
    InstanceGroup,
    ProfilerConfig,
    ProfilerRule,
    ShuffleConfig,
    TrainingInput,
    rule_configs,
)
from jobs import alive, attempts_of, clean_environment, descendants, eventually, pids_in, run
from jobs_here import run_job, run_verb

PRINTS = """
import argparse, os
import beside
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
args = parser.parse_args()
print("got", args.batch_size, os.listdir(args.train), os.environ["LEVEL"], flush=True)
for step in range(3):
    print(f"epoch 0 step {step} loss={1 / (step + 1)}", flush=True)
for step in (10, 20):
    print(f"at {step} lr {step / 10}", end="\\r", flush=True)
"""
WAITS = """
import os, pathlib, signal, sys
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = pathlib.Path(os.environ["HERE"], f"pid-{os.environ.get('RANK', 0)}")
path.write_text(f"{os.getpid()}\\n")
while True:
    signal.pause()
"""
TORCH = {"torch_distributed": {"enabled": True}}
# The script gets no more than torchrun gives, and nothing is recorded.
PLAIN: dict[str, Any] = {
    "contract": "torchrun",
    "profiler_config": ProfilerConfig(disable_profiler=True),
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts and a channel's data, in which the test stands."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.txt").write_text("a picture")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside.py").write_text("")
    (tmp_path / "prints.py").write_text(PRINTS)
    (tmp_path / "waits.py").write_text(WAITS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def waiting(job: Path, **more: Any) -> Estimator:
    return Estimator("waits.py", environment={"HERE": str(job)}, **{**PLAIN, **more})


def test_a_job_gets_what_was_asked_for_and_the_run_keeps_it(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    est = Estimator(
        "prints.py", hyperparameters={"batch-size": 16}, dependencies=["lib/beside.py"],
        environment={"LEVEL": "3", "API_TOKEN": "hush"}, role="arn:aws:iam::1:role/x",
        framework_version="1.0", sagemaker_session=object(), base_job_name="mine",
        metric_definitions=[
            {"Name": "loss", "Regex": r"loss=([0-9.]+)"},
            {"Name": "lr", "Regex": r"at (?P<step>\d+) lr ([0-9.]+)"},
        ],
        profiler_config=ProfilerConfig(system_monitor_interval_millis=250), max_run="1h",
        tags=[{"Key": "team", "Value": "vision"}],
    )  # fmt: skip
    est.fit({"train": "images"})
    captured = capsys.readouterr()
    assert "got 16 ['a.txt'] 3\n" in captured.out
    assert "framework_version 1.0 is asked for, and torch" in captured.err
    run = est.latest_run
    assert run is not None
    assert (run.state, run.exit_code) == ("Completed", 0)
    assert run.name.startswith("mine-")
    (attempt,) = attempts_of(run.path)
    asked = attempt["asked"]
    assert (asked["role"], asked["framework_version"]) == ("arn:aws:iam::1:role/x", "1.0")
    assert asked["inputs"] == {"train": "images"}
    assert asked["sagemaker_session"] == "<object>"
    assert "hush" not in (run.path / "run.json").read_text()
    assert (asked["max_run"], asked["tags"][0]["Value"]) == ("1h", "vision")
    metrics = run.open().metrics
    assert open_run(run.path).metrics.equals(metrics)
    assert set(metrics["source"]) == {"rank-0"}
    loss, lr = (metrics[metrics["name"] == name] for name in ("loss", "lr"))
    assert list(loss["value"]) == [1.0, 0.5, pytest.approx(1 / 3)]
    assert list(loss["step"]) == [0, 1, 2]
    assert [*zip(lr["step"], lr["value"], strict=True)] == [(10, 1.0), (20, 2.0)]


def test_a_job_that_fails_raises_with_its_last_words(job: Path) -> None:
    (job / "fails.py").write_text("raise ValueError('no labels')\n")
    for more in (PLAIN, {"instance_count": 2}):
        est = Estimator("fails.py", **more)
        with pytest.raises(LaunchError, match=r"(?s)failed with exit code 1.*no labels") as raised:
            est.fit(logs=False)
        assert "launcher.log" in str(raised.value)
        assert est.latest_run is not None
        assert (est.latest_run.state, est.latest_run.exit_code) == ("Failed", 1)
        if more is PLAIN:
            assert run_verb(job, "resume", str(est.latest_run.path)).returncode == 1
            first, resumed = attempts_of(est.latest_run.path)
            assert resumed["asked"] == first["asked"]


def test_what_cannot_run_is_refused_and_leaves_no_run(job: Path) -> None:
    for est, inputs, message in [
        (
            Estimator("printss.py", **PLAIN),
            None,
            r"There is no script printss.py .* Did you mean prints.py\?",
        ),
        (Estimator("prints.py"), {"train": "imagse"}, "there is no .*/imagse"),
        (Estimator("prints.py", contract="sagemeker"), None, r"Did you mean sagemaker\?"),
        (
            Estimator("prints.py", dependencies=["libs"], **PLAIN),
            None,
            "--dependency libs: there is no such",
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            est.fit(inputs, logs=False)
    left = [path.name for path in job.glob("runs/*") if path.name.startswith("printss")]
    assert left == []


@pytest.mark.parametrize("distribution", [{}, TORCH])
def test_a_job_that_nobody_waits_for_is_not_started_twice_and_stop_ends_all_of_it(
    job: Path, distribution: Any
) -> None:
    est = waiting(job, distribution=distribution, hyperparameters={"api_key": "canary"})
    est.fit(wait=False, job_name="base")
    run = est.latest_run
    assert run is not None
    (pid,) = pids_in(job, 1)
    assert run.process is not None
    showing = [each for each in (run.process.pid, *descendants(run.process.pid))
               if b"canary" in Path(f"/proc/{each}/cmdline").read_bytes()]  # fmt: skip
    assert showing == [pid]  # the script, whose argument it is
    assert b"HIDDEN_ARGUMENTS" not in Path(f"/proc/{pid}/environ").read_bytes()
    with pytest.raises(UsageError, match=r"base is running since .*, led by process \d+ on .*Wait"):
        waiting(job).fit(job_name="base")
    assert run.state == "InProgress"
    assert run.exit_code is None
    below = descendants(run.process.pid)
    assert pid in below
    est.stop()
    assert (run.state, run.exit_code) == ("Stopped", 143)
    eventually(lambda: not any(alive(each) for each in below), "all have ended")
    with pytest.raises(RecordsError, match="nothing is to switch"):
        est.disable_profiling()
    est.stop()  # once more does nothing


def test_a_script_that_will_not_stop_is_killed_after_the_grace(job: Path) -> None:
    est = waiting(job, hyperparameters={"deaf": ""})
    est.fit(wait=False)
    (pid,) = pids_in(job, 1)
    est.stop(grace_s=0.5)
    assert not alive(pid)
    assert est.latest_run is not None
    assert (est.latest_run.state, est.latest_run.exit_code) == ("Stopped", 137)
    (attempt,) = attempts_of(est.latest_run.path)
    assert attempt["reason"] == "Stopped: it outlasted its grace"


def test_a_job_goes_on_when_who_started_it_ends_and_another_process_attaches(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "from headrace import Estimator\n"
        f"est = Estimator('waits.py', contract='torchrun', environment={{'HERE': {str(job)!r}}})\n"
        "est.fit(wait=False, job_name='goes-on')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=job, env=clean_environment(), check=True)
    (pid,) = pids_in(job, 1)
    est = Estimator.attach("goes-on")
    assert est.latest_run is not None
    assert est.latest_run.state == "InProgress"
    est.update_profiler(system_monitor_interval_millis=250)
    switch = est.latest_run.switch()
    assert (switch.interval_s, switch.on) == (0.25, True)
    est.disable_profiling()
    assert not switch.on
    est.enable_default_profiling()
    assert switch.on
    est.update_profiler(deep_s=5)
    assert switch.deep
    with pytest.raises(UsageError, match="give 100ms to 60s"):
        est.update_profiler(system_monitor_interval_millis=5)
    est.stop()
    assert not alive(pid)
    assert est.latest_run.state == "Stopped"
    est.logs()
    assert "run folder" in capsys.readouterr().out


def test_a_job_that_is_waited_for_ends_with_who_waits(job: Path) -> None:
    code = (
        "from headrace import Estimator\n"
        f"est = Estimator('waits.py', contract='torchrun', environment={{'HERE': {str(job)!r}}})\n"
        "est.fit(job_name='tied')\n"
    )
    notebook = subprocess.Popen([sys.executable, "-c", code], cwd=job, env=clean_environment())
    (pid,) = pids_in(job, 1)
    notebook.kill()
    notebook.wait()
    eventually(lambda: not alive(pid), "the script has ended")
    est = Estimator.attach("tied")
    assert est.latest_run is not None
    assert (est.latest_run.state, est.latest_run.exit_code) == ("Failed", None)


def test_ctrl_c_while_waiting_stops_the_job(job: Path) -> None:
    code = (
        "from headrace import Estimator\n"
        f"est = Estimator('waits.py', contract='torchrun', environment={{'HERE': {str(job)!r}}})\n"
        "est.fit(job_name='asked')\n"
    )
    notebook = subprocess.Popen([sys.executable, "-c", code], cwd=job, env=clean_environment())
    (pid,) = pids_in(job, 1)
    notebook.send_signal(signal.SIGINT)
    assert notebook.wait() != 0
    assert not alive(pid)
    est = Estimator.attach("asked")
    assert est.latest_run is not None
    assert (est.latest_run.state, est.latest_run.exit_code) == ("Stopped", 143)


def test_runs_of_the_command_line_are_attached_to_also_by_an_estimator_itself(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / "ranks.py").write_text("import os\nprint('rank', os.environ['RANK'], flush=True)\n")
    (job / "none").mkdir()
    run(job, "--name", "typed", "--profile", "off", "--nproc-per-node", "2", "ranks.py")
    est = Estimator.attach("typed")
    assert est.latest_run is not None
    assert (est.latest_run.state, est.latest_run.exit_code) == ("Completed", 0)
    est.wait()
    est.logs()
    own = Estimator("prints.py", hyperparameters={"batch-size": 16, "password": "hush"})
    assert own.attach("typed") is own
    own.logs()
    output = capsys.readouterr().out
    for rank in (0, 1):
        assert output.count(f"[rank-{rank}] rank {rank}\n") == 2
    text = own.dry_run({"train": "images"})  # its own job stays
    assert "1 object, 9 B; File: nothing to move" in text
    assert "arguments     --batch-size 16" in text
    assert "SM_CHANNEL_TRAIN=/opt/ml/input/data/train" in text
    assert "hush" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert [path.name for path in (job / "runs").iterdir()] == ["typed"]
    with pytest.raises(UsageError, match="there is nothing"):
        own.dry_run({"train": "none"})
    with pytest.raises(UsageError, match=r"Did you mean|There is no run|no run"):
        own.attach("typo")


def test_an_estimator_of_a_run_starts_the_same_job_from_any_folder(
    job: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job / "code").mkdir()
    (job / "code" / "ends.py").write_text(
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['LEVEL'], os.listdir(os.environ['SM_CHANNEL_TRAIN']))\n"
    )
    group = InstanceGroup("gpu", "ml.g5.xlarge", 1)
    est = Estimator(
        "ends.py", source_dir="code", hyperparameters={"a": 1, "b": "2"}, instance_groups=[group],
        environment={"LEVEL": "3"},
        cache_dir=FileSystemInput("fs-1", "EFS", "cache", "rw"), sagemaker_session=object(),
        profiler_config=ProfilerConfig(framework_profile_params=FrameworkProfile(start_step=5)),
        rules=[ProfilerRule.sagemaker(rule_configs.StepOutlier())], max_restarts=1,
    )  # fmt: skip
    inputs = TrainingInput("images", instance_groups=["gpu"], shuffle_config=ShuffleConfig(1))
    est.fit({"train": inputs}, logs=False, job_name="first", experiment_config={"Trial": "x"})
    first = est.latest_run
    assert first is not None
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    again = Estimator.attach(first.path)
    assert (again.latest_run.path, again.latest_run.number) == (first.path, 1)
    again.fit(logs=False, job_name="second")
    assert again.latest_run is not None
    first_attempt, second_attempt = (
        attempts_of(each.path)[0] for each in (first, again.latest_run)
    )
    assert first_attempt["asked"] == second_attempt["asked"]
    commands = [
        [word for word in each["command"] if not word.startswith("--run-dir")]
        for each in (first_attempt, second_attempt)
    ]
    assert commands[0] == commands[1]
    assert first_attempt["folder"] == second_attempt["folder"] == str(job)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["ends.py"], "it was started from a command line"),
        (["--hyperparameter", "a=1", "job.yaml"], "had more to say: --hyperparameter=a=1"),
        (["job.yaml", "x"], "had more to say: x"),
        (["secret.yaml"], "it was given a secret"),
    ],
)
def test_a_job_that_is_not_written_down_whole_is_not_started_again(
    job: Path, more: list[str], message: str
) -> None:
    (job / "ends.py").write_text("")
    (job / "job.yaml").write_text("entry_point: ends.py\n")
    (job / "secret.yaml").write_text("entry_point: ends.py\nenvironment: {HF_TOKEN: hush}\n")
    ended = run_job(job, "--run-dir", "r", *more)
    assert ended.returncode == 0, ended.stderr
    est = Estimator.attach("r")
    for start in (est.fit, est.dry_run):
        with pytest.raises(UsageError, match=f"cannot start its job again: .*{message}"):
            start()


@pytest.mark.parametrize("asked", [{}, {"instance_count": 2, "contract": "sagemaker"}])
def test_a_job_that_takes_too_long_is_stopped_and_says_so(
    job: Path, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    est = waiting(job, max_run=3, **asked)
    est.fit()
    run = est.latest_run
    assert run is not None
    assert (run.state, run.exit_code) == ("Stopped", 143)
    (attempt,) = attempts_of(run.path)
    assert attempt["reason"] == "MaxRuntimeExceeded"
    captured = capsys.readouterr()
    assert "--max-run: 3 s are over" in captured.out
    assert "was stopped (MaxRuntimeExceeded)" in captured.err
    for file in job.glob("pid-*"):
        assert not alive(int(file.read_text()))


def test_two_dependencies_of_one_name_are_refused(job: Path) -> None:
    (job / "beside.py").write_text("")
    est = Estimator("prints.py", dependencies=["lib/beside.py", "beside.py"], **PLAIN)
    with pytest.raises(UsageError, match="have one name"):
        est.fit(logs=False)
