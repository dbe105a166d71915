"""`headrace cost` of recorded runs: dollars by group, what they went to, and missing prices."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.decide.cost.run_cost import known_cost
from jobs import run, run_here

RECORDED = Path(__file__).parents[1] / "goldens" / "artefacts" / "recorded"
GROUPS = [
    {"name": "gpu", "hosts": 1, "instance_type": "g5.xlarge", "role": "training"},
    {"name": "cpu", "hosts": 2, "instance_type": "c5.4xlarge", "role": "auxiliary"},
]


def printed(folder: Path, *arguments: str, code: int = 0, **extra: str) -> str:
    done = run_here(folder, "cost", *arguments, **extra)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, output
    return output


def cost(folder: Path, *arguments: str) -> dict[str, Any]:
    done = run_here(folder, "cost", "show", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    shutil.copytree(RECORDED / "ranks", tmp_path / "runs" / "ranks")
    return tmp_path / "runs" / "ranks"


def change(run_folder: Path, **fields: Any) -> None:
    """Change fields of the run's last attempt."""
    file = run_folder / "run.json"
    content = json.loads(file.read_text())
    content["attempts"][-1] |= fields
    file.write_text(json.dumps(content))


def test_a_runs_dollars_are_rates_times_hosts_times_hours(recorded: Path, tmp_path: Path):
    change(recorded, groups=GROUPS, started_s=1000.0, ended_s=4600.0)
    found = cost(tmp_path, "ranks", "--price", "gpu=1.5", "--price", "c5.4xlarge=0.5")
    gpu, cpu = found["groups"]
    assert (gpu["usd"], cpu["usd"]) == (1.5, 1.0)
    assert gpu["price"] is None
    assert cpu["price"]["catalogue"] == "own rate"
    assert found["usd"] == 2.5
    assert found["seconds"] == 3600.0
    assert found["failed_usd"] == 0
    assert 0 < found["data_wait_usd"] < 2.5
    assert found["samples"] > 0
    assert found["usd_per_1k_samples"] == pytest.approx(2500 / found["samples"])
    assert found["usd_per_epoch"] == pytest.approx(2.5 / found["epochs"])
    assert 0 < gpu["cpu_utilisation"] <= 1
    assert cpu["cpu_utilisation"] is None


def test_the_rate_of_a_type_goes_before_that_of_all(recorded: Path, tmp_path: Path):
    change(recorded, groups=GROUPS)
    gpu, cpu = cost(tmp_path, "ranks", "--price", "1.5", "--price", "c5.4xlarge=0.5")["groups"]
    assert (gpu["usd_per_hour"], cpu["usd_per_hour"]) == (1.5, 0.5)


def test_the_types_of_groups_have_dated_prices(recorded: Path, tmp_path: Path):
    change(recorded, groups=GROUPS)
    gpu, cpu = cost(tmp_path, "ranks", "--region", "us-east-1")["groups"]
    assert (gpu["usd_per_hour"], cpu["usd_per_hour"]) == (1.006, 0.68)
    assert gpu["price"]["source"].startswith("https://")
    output = printed(tmp_path, "show", "ranks")
    assert "g5.xlarge in us-east-1, 20" in output
    assert "per 1,000" in output


def test_hosts_of_google_cloud_have_prices_with_the_accelerators_of_their_type(
    recorded: Path, tmp_path: Path
):
    group = {"name": "gpu", "hosts": 1, "instance_type": "a2-highgpu-1g", "role": "training"}
    change(recorded, groups=[group])
    assert cost(tmp_path, "ranks")["groups"][0]["usd_per_hour"] == 3.67339
    assert cost(tmp_path, "ranks", "--spot")["groups"][0]["usd_per_hour"] == 1.92802
    # A host of this one may have others, which are sold apart.
    change(recorded, groups=[group | {"instance_type": "n1-standard-8"}])
    assert "No price of n1-standard-8" in printed(tmp_path, "show", "ranks", code=2)
    found = cost(tmp_path, "ranks", "--price", "n1-standard-8=0.73")
    assert found["groups"][0]["usd_per_hour"] == 0.73


@pytest.mark.parametrize("end", [{}, {"ended_s": None, "exit_code": None}])
def test_what_a_run_costs_is_known_without_reading_its_waits(recorded: Path, end: dict[str, Any]):
    change(recorded, groups=GROUPS, **end)
    whole = known_cost(recorded)
    records = recorded / "records" / "attempt-1"
    for name in ("fetches", "batches"):
        (records / f"{name}.parquet").write_bytes(b"what is not read")
    found = known_cost(recorded, training=False)
    assert whole is not None
    assert found is not None
    assert found.usd == whole.usd > 0
    assert (found.samples, found.data_wait_usd) == (0, None)


def test_a_failed_attempt_is_paid_for_too(recorded: Path, tmp_path: Path):
    change(recorded, started_s=0.0, ended_s=3600.0)
    alone = cost(tmp_path, "ranks", "--price", "1")
    file = recorded / "run.json"
    content = json.loads(file.read_text())
    failed = {**content["attempts"][0], "exit_code": 1, "ended_s": 1800.0}
    again = {**content["attempts"][0], "number": 2}
    file.write_text(json.dumps({**content, "attempts": [failed, again]}))
    found = cost(tmp_path, "ranks", "--price", "1")
    assert (found["usd"], found["failed_usd"], found["failed_attempts"]) == (1.5, 0.5, 1)
    assert found["samples"] == alone["samples"]
    assert "failed attempts (1): $0.5" in printed(tmp_path, "show", "ranks", "--price", "1")


@pytest.mark.parametrize("auxiliary", [2, 0])  # 0: as many as made batches
@pytest.mark.parametrize("left", ["", "rings"])
@pytest.mark.parametrize("number", [1, 2])
def test_an_attempt_that_left_an_empty_folder_of_records_counts_by_its_times(
    recorded: Path, tmp_path: Path, number: int, left: str, auxiliary: int
):
    change(recorded, groups=[GROUPS[0], {**GROUPS[1], "hosts": auxiliary}])
    alone = cost(tmp_path, "ranks")
    file = recorded / "run.json"
    content = json.loads(file.read_text())
    (whole,) = content["attempts"]
    empty = {**whole, "exit_code": 1, "started_s": 1000.0, "ended_s": 4600.0}
    records = recorded / "records"
    (records / "attempt-1").rename(records / f"attempt-{3 - number}")
    (records / f"attempt-{number}" / left).mkdir(parents=True)
    attempts = [whole, empty] if number == 2 else [empty, whole]
    numbered = [{**each, "number": place} for place, each in enumerate(attempts, 1)]
    file.write_text(json.dumps({**content, "attempts": numbered}))
    found = cost(tmp_path, "ranks")
    assert found["failed_usd"] == pytest.approx(1.006 + auxiliary * 0.68)
    assert found["usd"] == pytest.approx(alone["usd"] + found["failed_usd"])
    for name in ("samples", "data_wait_usd", "epochs"):
        assert found[name] == pytest.approx(alone[name])
    known = known_cost(recorded)
    assert known is not None
    assert known.usd == pytest.approx(found["usd"])
    assert run_here(tmp_path, "report", "ranks").returncode == 0
    assert "The run ranks cost $" in (recorded / "report.html").read_text()


@pytest.mark.parametrize(
    "end",
    [{"exit_code": 143}, {"exit_code": 130}, {"exit_code": 1, "reason": "MaxRuntimeExceeded"}],
)
def test_an_attempt_that_somebody_stopped_has_not_failed(
    recorded: Path, tmp_path: Path, end: dict[str, Any]
):
    change(recorded, groups=GROUPS, **end)
    found = cost(tmp_path, "ranks", "--price", "1")
    assert (found["failed_usd"], found["failed_attempts"]) == (0, 0)


def test_an_attempt_whose_launcher_was_killed_lasts_until_its_last_record(
    recorded: Path, tmp_path: Path
):
    whole = cost(tmp_path, "ranks", "--price", "1")
    change(recorded, ended_s=None, exit_code=None, launcher={})
    found = cost(tmp_path, "ranks", "--price", "1")
    assert found["failed_attempts"] == 1
    assert not found["running"]
    assert found["seconds"] == pytest.approx(whole["seconds"], abs=3.0)
    file = recorded / "records" / "attempt-1" / "hosts.parquet"
    hosts = pq.read_table(file)
    rows = [*hosts.to_pylist(), {**hosts.to_pylist()[0], "host": "another", "unix_offset_ns": 0}]
    pq.write_table(pa.Table.from_pylist(rows, schema=hosts.schema), file)
    # Several hosts have no clock in common: what counts is how long their ranks lasted.
    assert 0 < cost(tmp_path, "ranks", "--price", "1")["seconds"] <= found["seconds"]


def test_an_attempt_that_may_go_on_elsewhere_has_not_failed(recorded: Path, tmp_path: Path):
    whole = cost(tmp_path, "ranks", "--price", "1")
    launcher = {"host": "another", "pid": 1, "began_s": 0.0}
    change(recorded, ended_s=None, exit_code=None, launcher=launcher)
    found = cost(tmp_path, "ranks", "--price", "1")
    assert (found["failed_attempts"], found["failed_usd"]) == (0, 0)
    assert found["seconds"] == pytest.approx(whole["seconds"], abs=3.0)  # as far as it is seen
    assert not found["running"]
    change(recorded, started_s=time.time() - 7200.0)
    lock = recorded / "records" / "attempt-1" / "here.lock"
    with lock.open("w") as held:  # as of a host that shares the file system
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = cost(tmp_path, "ranks", "--price", "1")
    assert found["running"]
    assert (found["failed_attempts"], found["failed_usd"]) == (0, 0)
    assert found["usd"] == pytest.approx(2.0, abs=0.2)


def test_attempts_on_other_hosts_are_paid_for_as_they_were(recorded: Path, tmp_path: Path):
    change(recorded, groups=GROUPS[:1], started_s=0.0, ended_s=3600.0)
    file = recorded / "run.json"
    content = json.loads(file.read_text())
    again = {**content["attempts"][0], "number": 2, "groups": GROUPS}
    file.write_text(json.dumps({**content, "attempts": [*content["attempts"], again]}))
    found = cost(tmp_path, "ranks", "--price", "gpu=1", "--price", "cpu=0.5")
    assert [(each["name"], each["usd"]) for each in found["groups"]] == [("gpu", 2), ("cpu", 1)]
    assert found["usd"] == 3.0


def test_what_was_not_recorded_is_not_called_nothing(recorded: Path, tmp_path: Path):
    shutil.rmtree(recorded / "records")
    found = cost(tmp_path, "ranks", "--price", "1")
    assert found["data_wait_usd"] is None
    assert "spent on waiting for data is not recorded" in printed(
        tmp_path, "show", "ranks", "--price", "1"
    )


@pytest.mark.parametrize("steps", [0, 1])  # of which the first is warm-up
def test_a_run_of_which_no_step_is_known_did_not_wait_for_nothing(
    recorded: Path, tmp_path: Path, steps: int
):
    file = recorded / "records" / "attempt-1" / "steps.parquet"
    pq.write_table(pq.read_table(file).slice(0, steps), file)
    found = cost(tmp_path, "ranks", "--price", "1")
    assert found["data_wait_usd"] is None
    assert "spent on waiting for data is not recorded" in printed(
        tmp_path, "show", "ranks", "--price", "1"
    )


def test_a_share_of_waits_is_that_of_the_attempts_in_which_they_were_recorded(
    recorded: Path, tmp_path: Path
):
    change(recorded, started_s=0.0, ended_s=3600.0)
    alone = cost(tmp_path, "ranks", "--price", "1")
    share = alone["data_wait_usd"] / alone["usd"]
    assert f"({share:.0%}) waiting" in printed(tmp_path, "show", "ranks", "--price", "1")
    file = recorded / "run.json"
    content = json.loads(file.read_text())
    unrecorded = {**content["attempts"][0], "number": 2, "ended_s": 10800.0}
    file.write_text(json.dumps({**content, "attempts": [*content["attempts"], unrecorded]}))
    found = cost(tmp_path, "ranks", "--price", "1")
    assert (found["usd"], found["known_wait_usd"]) == (4.0, 1.0)
    assert found["data_wait_usd"] == pytest.approx(alone["data_wait_usd"])
    output = printed(tmp_path, "show", "ranks", "--price", "1")
    assert f"({share:.0%} of the $1" in output
    assert "of attempts whose steps are recorded) waiting for data" in output


BATCHES = 20  # of an epoch, in each rank
TRAINED = 2 * BATCHES


@pytest.mark.parametrize("cut", [12, 25])  # within the first epoch, and the second
def test_an_epoch_is_a_whole_one_after_a_resume_within_it(recorded: Path, tmp_path: Path, cut: int):
    whole = cost(tmp_path, "ranks", "--price", "1")
    assert whole["epochs"] == pytest.approx(2.0)
    records = recorded / "records"
    shutil.copytree(records / "attempt-1", records / "attempt-2")
    keep_batches(records / "attempt-1", 0, cut)
    keep_batches(records / "attempt-2", cut, TRAINED)
    file = recorded / "run.json"
    content = json.loads(file.read_text())
    (first,) = content["attempts"]
    attempts = [{**first, "exit_code": 143}, {**first, "number": 2}]
    file.write_text(json.dumps({**content, "attempts": attempts}))
    found = cost(tmp_path, "ranks", "--price", "1")
    assert found["samples"] == whole["samples"]
    assert found["epochs"] == pytest.approx(2.0)
    assert found["usd_per_epoch"] == pytest.approx(found["usd"] / 2)


def keep_batches(records: Path, begin: int, end: int) -> None:
    """Keep some batches of each rank, as an attempt records them that goes on from a checkpoint."""
    steps = pq.read_table(records / "steps.parquet")
    number = steps["step"].to_numpy()
    is_other = np.array(steps["kind"].to_pylist()) != "train"
    steps = steps.filter(pa.array(is_other | ((begin <= number) & (number < end))))
    pq.write_table(steps, records / "steps.parquet")
    fetches = pq.read_table(records / "fetches.parquet")
    epoch, batch = (fetches[name].to_numpy() for name in ("epoch", "batch"))
    last = epoch * BATCHES + np.minimum(batch, BATCHES - 1)  # batch, or that before the end
    batch = batch - np.where(epoch == begin // BATCHES, begin % BATCHES, 0)
    place = fetches.schema.get_field_index("batch")
    fetches = fetches.set_column(place, "batch", pa.array(batch, type=pa.int64()))
    fetches = fetches.filter(pa.array((begin <= last) & (last < end)))
    pq.write_table(fetches, records / "fetches.parquet")


def test_a_rate_of_one_s_own_is_one_of_spot_instances_too(recorded: Path, tmp_path: Path):
    change(recorded, groups=GROUPS)
    rates = ("--price", "g5.xlarge=0.3", "--price", "c5.4xlarge=0.2", "--spot")
    assert [each["usd_per_hour"] for each in cost(tmp_path, "ranks", *rates)["groups"]] == [
        0.3,
        0.2,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--price", "1", "--price", "gpuu=2"), "the run has no gpuu, but"),
        (("--price", "1", "--instance-type", "gpuu=g5.xlarge"), "the run has no gpuu, but"),
        ((), "The instance type of this host is unknown"),
        (("--instance-type", "g5.xlarg"), "Did you mean g5.xlarge?"),
        (("--instance-type", "ml.g5.xlarge"), "That of g5.xlarge is EC2's"),
        (("--instance-type", "g5.xlarge", "--spot"), "No spot price of g5.xlarge"),
        (("--price", "cheap"), "--price cheap: cheap is no number of dollars"),
        (("--price", "-1"), "is no number of dollars"),
        (("--price", "gpu="), "write it as VALUE"),
        (("--price", "1", "--prices", "none.csv"), "none.csv: the prices cannot be read"),
    ],
)
def test_a_price_that_is_missing_is_one_sentence(
    recorded: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
):
    change(recorded, groups=[])
    output = printed(tmp_path, "show", "ranks", *arguments, code=2)
    assert message in output
    assert "Traceback" not in output


def test_where_prices_are_known_the_page_has_the_cost(recorded: Path, tmp_path: Path):
    change(recorded, groups=GROUPS, started_s=1000.0, ended_s=4600.0)
    assert run_here(tmp_path, "report", "ranks").returncode == 0
    text = (recorded / "report.html").read_text()
    assert "The run ranks cost $2.37 at prices of us-east-1, " in text  # 1.006 + 2 x 0.68 dollars
    assert "c5.4xlarge" in text
    change(recorded, groups=[])
    assert run_here(tmp_path, "report", "ranks").returncode == 0
    assert "ranks cost" not in (recorded / "report.html").read_text()


def test_a_run_on_hosts_with_prices_says_what_it_cost(tmp_path: Path):
    (tmp_path / "t.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "net = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for (x,) in DataLoader(TensorDataset(torch.randn(320, 4)), 8):\n"
        "    net(x).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = run(tmp_path, "t.py", SM_CURRENT_INSTANCE_TYPE="g5.xlarge")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"The run t-\d+-\d+ cost \$0\.0\d+ at prices of us-east-1, "
        r"\$0[.\d]* of it \(\d+%\) waiting",
        " ".join(done.stderr.split()),
    )
    broken = tmp_path / "broken.csv"
    broken.write_text("InstanceType,Prise\n")
    done = run(tmp_path, "t.py", SM_CURRENT_INSTANCE_TYPE="g5.xlarge", HEADRACE_PRICES=str(broken))
    assert done.returncode == 0
    assert "no cost: " in done.stderr
    assert "broken.csv: there is no column Price" in done.stderr
    assert "headrace doctor" in done.stderr  # the verdict and the page are there all the same


def test_prices_are_listed_with_their_day_and_old_ones_are_told(tmp_path: Path):
    listed = printed(
        tmp_path, "prices", "g5.xlarge", "c5.4xlarge", "--max-age", "1d", COLUMNS="200"
    )
    assert "1.006" in listed
    assert "2 of 2 prices are older than 1 days, or undated; the oldest is of 20" in listed
    assert "older than" not in printed(tmp_path, "prices", "g5.xlarge", "--max-age", "99999d")
    assert "no price is known" in printed(tmp_path, "prices", "--region", "mars-1", code=2)
    assert "write it in days" in printed(tmp_path, "prices", "--max-age", "soon", code=2)


def test_a_run_says_which_hosts_it_had(tmp_path: Path):
    (tmp_path / "t.py").write_text("print('here')\n")
    assert run(tmp_path, "t.py", SM_CURRENT_INSTANCE_TYPE="ml.c5.xlarge").returncode == 0
    found = cost(tmp_path, "--price", "ml.c5.xlarge=0.3")
    (group,) = found["groups"]
    assert (group["name"], group["instance_type"], group["hosts"]) == (
        "this host",
        "ml.c5.xlarge",
        1,
    )
    assert group["usd_per_hour"] == 0.3
    assert "how many samples it took is not recorded" in printed(tmp_path, "show", "--price", "1")
