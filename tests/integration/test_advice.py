"""`headrace cost advise` of recorded runs: which hosts, at what throughput and cost."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.errors import UsageError
from headrace.decide.cost.advice import Goal
from headrace.decide.cost.advice import advise as choose
from headrace.decide.cost.host_speeds import HostSpeeds, add_speed
from headrace.decide.cost.predicted_mixes import ComparedHosts, compare_hosts, remedied_mixes
from headrace.decide.cost.price_catalogue import PriceCatalogue
from headrace.decide.cost.run_cost import Pricing, run_cost
from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.whatif.train_steps import read_steps
from headrace.records.reader import open_records
from jobs import run_here
from pages import Page, check_alone

RECORDED = Path(__file__).parents[1] / "goldens" / "artefacts" / "recorded"
GPU = {"name": "gpu", "hosts": 1, "instance_type": "g5.xlarge", "role": "training"}
CPU = {"name": "cpu", "hosts": 1, "instance_type": "c5.4xlarge", "role": "auxiliary"}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run that waits for data, on a g5.xlarge."""
    run = tmp_path / "runs" / "ranks"
    shutil.copytree(RECORDED / "alone", run)
    set_groups(run, GPU)
    return run


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> ComparedHosts:
    """The hosts that such a run could train on: it takes three seconds to predict them."""
    run = tmp_path_factory.mktemp("compared") / "ranks"
    shutil.copytree(RECORDED / "alone", run)
    set_groups(run, GPU)
    return compare_hosts(run, Pricing(catalogue=PriceCatalogue()))


def set_groups(run: Path, *groups: dict[str, Any]) -> None:
    file = run / "run.json"
    content = json.loads(file.read_text())
    content["attempts"][-1] |= {"groups": groups}
    file.write_text(json.dumps(content))


def advise(folder: Path, *words: str) -> dict[str, Any]:
    done = run_here(folder, "cost", "advise", "ranks", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(folder: Path, *words: str) -> str:
    done = run_here(folder, "cost", "advise", "ranks", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    return " ".join(done.stderr.split())


def test_every_mix_has_its_throughput_its_price_and_the_front_is_one(
    recorded: Path, tmp_path: Path, compared: ComparedHosts
):
    found = advise(tmp_path)
    assert found == json.loads(json.dumps(choose(compared, Goal()).to_json()))
    now, *others = found["mixes"]
    measured = read_steps(open_records(recorded)).samples_per_s
    assert measured is not None
    assert (now["name"], now["kind"], now["usd_per_hour"]) == ("g5.xlarge", "as it is", 1.006)
    assert now["samples_per_s"]["value"] == pytest.approx(measured)
    kinds = {mix["kind"] for mix in others}
    assert kinds >= {"bigger host", "auxiliary hosts", "more accelerators", "more hosts"}
    names = [mix["name"] for mix in others]
    assert len(names) == len(set(names))
    assert "g5.xlarge + 2 x c5.4xlarge" in names
    for mix in found["mixes"]:
        rate, cost = mix["samples_per_s"], mix["usd_per_1k_samples"]
        assert 0 < rate["low"] <= rate["value"] <= rate["high"], mix["name"]
        for end, other in (("value", "value"), ("low", "high"), ("high", "low")):
            assert cost[end] == pytest.approx(mix["usd_per_hour"] / 3.6 / rate[other])
    check_front(found)
    best = found["recommended"]
    cheapest = min(mix["usd_per_1k_samples"]["value"]
                   for mix in found["mixes"] if not mix["needs_code"])  # fmt: skip
    assert cheapest <= best["usd_per_1k_samples"]["value"] <= 1.02 * cheapest


def check_front(found: dict[str, Any]) -> None:
    """A mix is on the front unless another is as fast and cheaper, or as cheap and faster.

    Those that take a change of the script are not to be chosen.
    """
    places = {
        mix["name"]: (mix["samples_per_s"]["value"], -mix["usd_per_1k_samples"]["value"])
        for mix in found["mixes"]
        if not mix["needs_code"]
    }
    best = {
        name for name, place in places.items()
        if not any(other != place and other[0] >= place[0] and other[1] >= place[1]
                   for other in places.values())
    }  # fmt: skip
    assert set(found["front"]) <= best
    assert {places[name] for name in best} == {places[name] for name in found["front"]}
    rates = [places[name][0] for name in found["front"]]
    assert rates == sorted(rates)


def test_more_hosts_never_make_it_slower(compared: ComparedHosts):
    rates = {mix.name: mix.samples_per_s.value for mix in compared.mixes}
    for kind in ("c5.xlarge", "c5.4xlarge"):
        rising = [rates[f"g5.xlarge + {n} x {kind}"] for n in (2, 4, 8)]
        assert rates["g5.xlarge"] * 0.99 <= rates[f"g5.xlarge + {kind}"] <= rising[0] * 1.01
        assert rising == sorted(rising) or max(rising) < 1.01 * min(rising)
    assert rates["2 x g5.xlarge"] < 2.0 * rates["g5.xlarge"] * 1.001


def test_a_target_a_deadline_and_a_budget(compared: ComparedHosts):
    now, *_ = compared.mixes
    usable = [mix for mix in compared.mixes if not mix.needs_code]
    wanted = 2.5 * now.samples_per_s.value
    fast = choose(compared, Goal(samples_per_s=wanted)).recommended
    assert fast.samples_per_s.value >= wanted
    in_time = Goal(samples=100_000, deadline_s=100_000 / wanted)
    assert choose(compared, in_time).recommended is fast
    assert choose(compared, Goal(deadline_s=7e6)).recommended  # of the run's own samples
    dear = 100 * now.usd_per_1k_samples.value * 1.001
    rich = choose(compared, Goal(samples=100_000, budget_usd=dear)).recommended
    affordable = [
        mix.samples_per_s.value for mix in usable if mix.usd_per_1k_samples.value * 100 <= dear
    ]
    assert rich.samples_per_s.value == max(affordable)


def test_goals_that_none_reaches_are_refused_with_what_can_be_had(
    recorded: Path, tmp_path: Path, compared: ComparedHosts
):
    most = max(mix.samples_per_s.value for mix in compared.mixes if not mix.needs_code)
    with pytest.raises(UsageError, match="the most that can be had is") as unreached:
        choose(compared, Goal(samples_per_s=1e9))
    assert f"{most:,.4g}" in str(unreached.value)
    with pytest.raises(UsageError, match="--budget 0: 100,000 samples cost"):
        choose(compared, Goal(samples=100_000, budget_usd=0))
    words = ("--target", "10", "--samples", "100000000", "--deadline", "1s")
    late = refusal(tmp_path, *words)
    assert "--deadline 1 s for 100,000,000 samples: it takes" in late
    assert "write it as 2h, 30min or 90s" in refusal(tmp_path, "--deadline", "0s")
    assert recorded.exists()


def test_what_is_printed_fits_a_terminal(recorded: Path, tmp_path: Path):
    page = run_here(tmp_path, "cost", "advise", recorded.name, "--html", str(tmp_path / "a.html"))
    assert page.returncode == 0, page.stderr
    check_page(Page(Path(page.stdout.strip()).read_text()))
    done = run_here(tmp_path, "cost", "advise", recorded.name, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split())
    assert text.startswith(("Take ", "Keep "))
    assert "samples/s" in text
    assert "none is both faster and cheaper by sample" in text


def check_page(page: Page) -> None:
    """The page has a point for each mix, and the front as a falling or rising line."""
    check_alone(page)
    drawn = page.charts["mixes"]
    kinds = {group["name"] for group in drawn["groups"]}
    assert kinds >= {"as it is", "auxiliary hosts", "bigger host"}
    points = [point for group in drawn["groups"] for point in group["points"]]
    assert len({point["text"] for point in points}) == len(points) > 100
    assert drawn["front"] == sorted(drawn["front"])
    assert drawn["chosen"] in [[point["x"], point["y"]] for point in points]


def test_own_prices_regions_and_clouds(recorded: Path, tmp_path: Path):
    (tmp_path / "own.csv").write_text(
        "InstanceType,Price,SpotPrice,vCPUs,AcceleratorName,AcceleratorCount,Region\n"
        "rack.gpu,2.0,1.0,4,A10G,1,here\nrack.big,3.0,1.5,32,A10G,1,here\n"
        "rack.cpu,0.5,,16,,,here\n"
    )
    words = ("--prices", "own.csv", "--region", "here", "--instance-type", "rack.gpu")
    found = advise(tmp_path, *words)
    assert {
        mix["name"].split(",")[0] for mix in found["mixes"] if mix["kind"] == "bigger host"
    } == {"rack.big"}
    assert "rack.gpu + 3 x rack.cpu" in {mix["name"] for mix in found["mixes"]}
    spot = advise(tmp_path, *words, "--spot")
    assert spot["mixes"][0]["usd_per_hour"] == 1.0
    assert not [mix for mix in spot["mixes"] if "rack.cpu" in mix["name"]]  # it has no spot price
    assert "No price of a type with known cores of sagemaker is known" in refusal(
        tmp_path, "--cloud", "sagemaker"
    )
    assert "none that has a price has as many cores and A10G" in refusal(tmp_path, "--cloud", "gcp")
    assert "--cloud azure" in refusal(tmp_path, "--cloud", "azure")
    assert "No price of g5.xlarge in nowhere is known" in refusal(tmp_path, "--region", "nowhere")
    assert "No spot price of g5.xlarge in us-east-1 is known (aws_ec2 has none at all)" in refusal(
        tmp_path, "--spot"
    )
    assert recorded.exists()


def test_own_rates_change_what_is_paid_and_not_what_can_be_had(recorded: Path, tmp_path: Path):
    offered = {mix["name"] for mix in advise(tmp_path)["mixes"]}
    (tmp_path / "short.csv").write_text("InstanceType,Price\ng5.xlarge,0.7\n")
    for words in (
        ("--price", "g5.xlarge=0.7"),
        ("--price", "gpu=0.7"),
        ("--price", "0.7"),
        ("--prices", "short.csv"),
        ("--prices", "short.csv", "--region", "us-east-1"),
    ):
        found = advise(tmp_path, *words)
        assert found["mixes"][0]["usd_per_hour"] == 0.7
        assert {mix["name"] for mix in found["mixes"]} == offered
    helped = advise(tmp_path, "--price", "c5.4xlarge=0.1")
    paid = {mix["name"]: mix["usd_per_hour"] for mix in helped["mixes"]}
    assert paid["g5.xlarge + 2 x c5.4xlarge"] == pytest.approx(1.006 + 2 * 0.1)
    assert "the run has no c5.huge" in refusal(tmp_path, "--price", "c5.huge=0.1")
    pricing = Pricing(catalogue=PriceCatalogue())
    assert compare_hosts(recorded, pricing).samples == run_cost(recorded, pricing).samples > 0


def test_auxiliary_hosts_of_the_run_are_paid_for_and_stay(recorded: Path, tmp_path: Path):
    set_groups(recorded, GPU, CPU)
    found = advise(tmp_path)
    now = found["mixes"][0]
    assert now["name"] == "g5.xlarge + c5.4xlarge"
    assert now["usd_per_hour"] == pytest.approx(1.006 + 0.68)
    bigger = [mix["name"] for mix in found["mixes"] if mix["kind"] == "bigger host"]
    assert bigger
    assert all("+ c5.4xlarge" in name for name in bigger)
    doubled = next(mix for mix in found["mixes"] if mix["name"] == "2 x g5.xlarge + 2 x c5.4xlarge")
    assert doubled["usd_per_hour"] == pytest.approx(2 * now["usd_per_hour"])


def test_hosts_that_the_script_uses_in_its_own_way_are_paid_for_and_stay(
    recorded: Path, tmp_path: Path
):
    set_groups(recorded, GPU, {**CPU, "name": "servers", "hosts": 2, "role": ""})
    now, *others = advise(tmp_path)["mixes"]
    assert now["name"] == "g5.xlarge + 2 x c5.4xlarge"
    assert now["usd_per_hour"] == pytest.approx(1.006 + 2 * 0.68)
    offered = {mix["name"].split(",")[0]: mix["usd_per_hour"] for mix in others}
    assert all("c5.4xlarge" in name for name in offered)
    assert offered["g5.xlarge + c5.large + 2 x c5.4xlarge"] == pytest.approx(
        now["usd_per_hour"] + 0.085
    )
    assert "2 x g5.xlarge + 4 x c5.4xlarge" in offered


def test_of_another_cloud_only_its_own_hosts_are_offered(recorded: Path, tmp_path: Path):
    set_groups(recorded, {**GPU, "instance_type": "g6.xlarge"})
    words = ("--cloud", "gcp")
    found = advise(tmp_path, *words)
    now, *others = found["mixes"]
    assert now["name"] == "g6.xlarge"  # to compare with
    assert others
    assert all(mix["name"].startswith("g2-standard-") for mix in others)
    assert found["recommended"]["name"].startswith("g2-standard-")
    assert all(name.startswith("g2-standard-") for name in found["front"])
    most = refusal(tmp_path, *words, "--target", "1e9")
    assert "the most that can be had is" in most
    assert "on g2-standard-" in most
    set_groups(recorded, {**GPU, "instance_type": "g6.xlarge"}, CPU)
    assert "can be compared with its own cloud's hosts alone" in refusal(tmp_path, *words)


def test_a_run_without_a_type_or_without_records_is_said(recorded: Path, tmp_path: Path):
    set_groups(recorded, {**GPU, "instance_type": ""})
    assert "The instance type of gpu is unknown" in refusal(tmp_path)
    found = advise(tmp_path, "--price", "2.5")
    assert found["mixes"][0]["name"] == "this host"
    # What such a host has is not known, so none is offered in its place.
    assert {mix["kind"] for mix in found["mixes"]} == {"as it is", "auxiliary hosts", "remedy"}
    shutil.rmtree(recorded / "records")
    done = run_here(tmp_path, "cost", "advise", "ranks", "--price", "2.5")
    assert done.returncode == 1
    assert "headrace: " in done.stderr
    assert "Traceback" not in done.stderr


def with_rows(run: Path, table: str, **columns: float) -> None:
    """Add columns to the first rows of a recorded table, or rows to one that has none."""
    file = run / "records" / "attempt-1" / f"{table}.parquet"
    stored = pq.read_table(file)
    if stored.num_rows:
        for name, value in columns.items():
            values = pa.array([value] * stored.num_rows, type=pa.float32())
            stored = stored.append_column(name, values)
    else:
        nothing = {name: "train" if name == "kind" else 0 for name in stored.schema.names}
        stored = pa.Table.from_pylist([nothing | columns], schema=stored.schema)
    pq.write_table(stored, file)


@pytest.mark.parametrize(
    ("table", "columns"),
    [("device_steps", {"device_wall_ns": 1}), ("system", {"gpu_0_utilisation_percent": 90.0})],
)
def test_a_run_on_an_accelerator_of_which_no_price_says_is_offered_no_host_without_one(
    recorded: Path, tmp_path: Path, table: str, columns: dict[str, float]
):
    file = tmp_path / "own.csv"
    file.write_text("InstanceType,Price,vCPUs\nmine,2,4\nmine-big,3,32\n")
    pricing = Pricing(catalogue=PriceCatalogue([file]), types={"": "mine"})
    without = compare_hosts(recorded, pricing)
    assert "mine-big" in {mix.mix.training.instance_type for mix in without.mixes}
    assert without.left_out == ""
    with_rows(recorded, table, **columns)
    found = compare_hosts(recorded, pricing)
    assert {mix.mix.training.instance_type for mix in found.mixes} == {"mine"}
    assert "mine has an accelerator, and no price says which" in found.left_out
    assert choose(found, Goal()).to_json()["left_out"] == found.left_out


@pytest.mark.parametrize(
    ("group", "words", "why"),
    [
        ({"hosts": 2}, (), "the run has 2, and other types are predicted of a run on one host"),
        (
            {"instance_type": ""}, ("--price", "2.5"),
            "how many cores this host has is not known: --instance-type says which type it is",
        ),
        (
            {"instance_type": "mine"}, ("--prices", "own.csv"),
            "how many cores mine has is not known: a file for --prices says it",
        ),
    ],
)  # fmt: skip
def test_why_no_other_type_of_host_is_compared_is_said_also_where_no_goal_is_reached(
    recorded: Path, tmp_path: Path, group: dict[str, Any], words: tuple[str, ...], why: str
):
    (tmp_path / "own.csv").write_text("InstanceType,Price\nmine,2\n")
    set_groups(recorded, {**GPU, **group})
    found = advise(tmp_path, *words)
    assert not {mix["kind"] for mix in found["mixes"]} & {"bigger host", "more accelerators"}
    assert f"Hosts of other types to train on are left out: {why}" in found["left_out"]
    assert found["left_out"] in refusal(tmp_path, *words, "--target", "1e9")
    assert found["left_out"] in refusal(tmp_path, *words, "--budget", "0")


def test_a_goal_that_a_change_of_the_script_reaches_alone_names_it(compared: ComparedHosts):
    now, *_ = compared.mixes
    changed = replace(
        now, remedy="decode fewer pixels", needs_code=True,
        samples_per_s=now.samples_per_s.times(1000.0),
    )  # fmt: skip
    more = replace(compared, mixes=(*compared.mixes, changed))
    wanted = Goal(samples_per_s=changed.samples_per_s.value)
    with pytest.raises(UsageError, match=r"A change of the script gives .*decode fewer pixels"):
        choose(more, wanted)
    with pytest.raises(UsageError, match="the most that can be had is"):
        choose(compared, wanted)


def test_own_prices_of_sagemaker_need_say_nothing_of_its_types(recorded: Path, tmp_path: Path):
    (tmp_path / "own.csv").write_text(
        "InstanceType,Price\nml.g5.xlarge,1.408\nml.g5.4xlarge,2.03\nml.c5.xlarge,0.204\n"
    )
    set_groups(recorded, {**GPU, "instance_type": "ml.g5.xlarge"})
    names = {mix["name"].split(",")[0] for mix in advise(tmp_path, "--prices", "own.csv")["mixes"]}
    assert names >= {"ml.g5.xlarge", "ml.g5.4xlarge", "ml.g5.xlarge + 2 x ml.c5.xlarge"}
    assert all("ml." in name for name in names)


def test_hosts_that_were_measured_narrow_what_is_predicted(tmp_path: Path, compared: ComparedHosts):
    speeds = tmp_path / "speeds.csv"
    measured = run_here(
        tmp_path, "cost", "calibrate", "--instance-type", "g5.xlarge", "--seconds", "0.2",
        "--output", str(speeds), "--json",
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr
    here = json.loads(measured.stdout)
    assert here["ImagesPerCore"] > 0
    assert here["Cores"] == len(os.sched_getaffinity(0))
    add_speed(speeds, {**here, "InstanceType": "c5.large", "ImagesPerCore": here["ImagesPerCore"]})
    run = tmp_path / "ranks"
    shutil.copytree(RECORDED / "alone", run)
    set_groups(run, GPU)
    found = compare_hosts(
        run, Pricing(catalogue=PriceCatalogue()), speeds=HostSpeeds([speeds]), cloud="aws"
    )
    before, after = ({mix.name: mix for mix in each.mixes} for each in (compared, found))
    name = "g5.xlarge + c5.large"
    widths = [mix[name].samples_per_s.high - mix[name].samples_per_s.low for mix in (before, after)]
    assert widths[1] < widths[0]
    assert not after[name].assumptions
    other = "g5.xlarge + c5.xlarge"  # which was not measured
    assert after[other].samples_per_s == before[other].samples_per_s
    assert "headrace cost calibrate" in after[other].assumptions[0]


def test_a_measured_host_without_a_name_is_not_written(tmp_path: Path):
    done = run_here(tmp_path, "cost", "calibrate", "--output", str(tmp_path / "speeds.csv"))
    assert done.returncode == 2
    assert "--instance-type" in done.stderr
    assert not (tmp_path / "speeds.csv").exists()


def test_hosts_that_cost_nothing_get_advice_without_a_share_of_their_cost(
    recorded: Path, tmp_path: Path
):
    set_groups(recorded, {**GPU, "instance_type": ""})
    found = advise(tmp_path, "--price", "0", "--target", "1200")
    assert found["recommended"] != found["mixes"][0]["name"]
    assert found["reason"].endswith("per 1,000.")
    assert "than now" not in found["reason"]


def test_of_remedies_only_the_rate_is_predicted(compared: ComparedHosts):
    remedies = [mix for mix in compared.mixes if mix.remedy]
    assert remedies
    for mix in remedies:
        assert mix.to_json()["wait_share"] is None
        assert mix.samples_per_s.value == pytest.approx(
            compared.mixes[0].samples_per_s.value * mix.speedup
        )


def test_remedies_for_time_outside_of_steps_do_not_change_the_rate_of_steps(recorded: Path):
    found = diagnose(open_records(recorded))
    remedy = replace(found.findings[0].remedies[0], change="half the evaluation")
    evaluation = replace(found.findings[0], rule="evaluation", remedies=(remedy,))
    now = compare_hosts(recorded, Pricing(catalogue=PriceCatalogue())).mixes[0]
    both = replace(found, findings=(evaluation, *found.findings))
    assert len(list(remedied_mixes(now, found))) == len(list(remedied_mixes(now, both)))


def test_remedies_that_add_hosts_are_no_change_of_the_runs_own(
    recorded: Path, compared: ComparedHosts
):
    found = diagnose(open_records(recorded))
    worst, *others = found.findings
    hosts = replace(
        worst.remedies[0], name="auxiliary-hosts", change="2 auxiliary hosts of 4 cores",
        predicted_speedup=9.0, low=8.0, high=10.0,
    )  # fmt: skip
    helped = replace(worst, rule="cpu-bound-worker", remedies=(hosts, *worst.remedies))
    now, same = compared.mixes[0], replace(helped, remedies=worst.remedies)
    with_hosts, without = (
        list(remedied_mixes(now, replace(found, findings=(each, *others))))
        for each in (helped, same)
    )
    assert with_hosts == without


def test_what_takes_a_change_of_the_script_takes_no_place_on_the_front(compared: ComparedHosts):
    now = compared.mixes[0]
    rewritten = replace(
        now, remedy="without the blur", needs_code=True, samples_per_s=now.samples_per_s.times(1e4)
    )
    advice = choose(replace(compared, mixes=(*compared.mixes, rewritten)), Goal())
    assert advice.front == choose(compared, Goal()).front
    assert not any(mix.needs_code for mix in advice.front)
    assert rewritten in advice.shown


@pytest.mark.parametrize("ranks", [(), (0,)])
def test_gradient_sync_that_was_not_measured_is_not_none(tmp_path: Path, ranks: tuple[int, ...]):
    run = tmp_path / "ranks"
    shutil.copytree(RECORDED / "ranks", run)
    prices = tmp_path / "own.csv"
    prices.write_text(
        "InstanceType,Price,vCPUs,AcceleratorName,AcceleratorCount\n"
        "mine,2,4,T4,2\nmine-big,8,16,T4,8\n"
    )
    pricing = Pricing(catalogue=PriceCatalogue([prices]), types={"": "mine"})
    measured = compare_hosts(run, pricing)
    keep_sync_of(run, ranks)
    unmeasured = compare_hosts(run, pricing)
    kinds = {"more hosts", "more accelerators"}
    for found, words in (
        (measured, "gradient sync as between its ranks"),
        (unmeasured, "gradient sync, not measured"),
    ):
        several = [mix for mix in found.mixes if mix.mix.kind in kinds]
        assert {mix.mix.kind for mix in several} == kinds
        assert all(text.startswith(words) for mix in several for text in mix.assumptions)
        assert all(mix.assumptions for mix in several)
    rate = unmeasured.mixes[0].samples_per_s.value
    for mix in unmeasured.mixes:
        if mix.mix.kind == "more hosts":
            assert mix.samples_per_s.value < rate * mix.mix.training.hosts


def keep_sync_of(run: Path, ranks: tuple[int, ...]) -> None:
    """Have a run's records say nothing of the gradient sync of other ranks than these."""
    file = run / "records" / "attempt-1" / "steps.parquet"
    steps = pq.read_table(file)
    kept = np.isin(steps["rank"].to_numpy(), ranks)
    for name in ("sync_ns", "sync_measured"):
        values = pa.array(np.where(kept, steps[name].to_numpy(), 0), type=pa.int64())
        steps = steps.set_column(steps.schema.get_field_index(name), name, values)
    pq.write_table(steps, file)
