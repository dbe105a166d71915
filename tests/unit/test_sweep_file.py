"""Sweep files: the runs that a grid or a list stands for, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.jobs.sweep.sweep_file import Sweep, read_sweep

EXAMPLES = Path(__file__).parents[2] / "examples" / "sweeps"
JOB = 'entry_point = "train.py"\n[hyperparameters]\nepochs = 3\n'


def read(folder: Path, text: str, name: str = "tried.toml") -> Sweep:
    (folder / name).write_text(text)
    return read_sweep(folder / name)


def test_a_grid_is_every_combination_in_the_order_of_the_file(tmp_path: Path):
    sweep = read(
        tmp_path,
        JOB + '[sweep.grid]\nhyperparameters.strategy = ["ddp", "fsdp"]\n'
        "hyperparameters.workers = [2, 4]\n",
    )
    assert (sweep.name, sweep.experiment, sweep.max_concurrent) == ("tried", "tried", 1)
    assert [run.name for run in sweep.runs] == [
        "tried-ddp-workers2", "tried-ddp-workers4", "tried-fsdp-workers2", "tried-fsdp-workers4",
    ]  # fmt: skip
    assert [dict(run.changes) for run in sweep.runs][1] == {
        "hyperparameters.strategy": "ddp", "hyperparameters.workers": "4",
    }  # fmt: skip
    values = [run.request.arguments["hyperparameters"] for run in sweep.runs]
    assert values[3] == {"epochs": 3, "strategy": "fsdp", "workers": 4}
    assert len({run.digest for run in sweep.runs}) == 4


@pytest.mark.parametrize(
    "grid",
    [
        "[sweep.grid]\nhyperparameters.lr = [0.1, 0.2]\n",
        '[sweep.grid]\n"hyperparameters.lr" = [0.1, 0.2]\n',
        "[sweep.grid.hyperparameters]\nlr = [0.1, 0.2]\n",
    ],
)
def test_a_key_in_a_table_may_be_written_in_any_way(tmp_path: Path, grid: str):
    sweep = read(tmp_path, JOB + grid)
    lrs = [run.request.arguments["hyperparameters"]["lr"] for run in sweep.runs]
    assert lrs == [0.1, 0.2]


def test_a_hyperparameter_with_a_dot_keeps_it(tmp_path: Path):
    sweep = read(tmp_path, JOB + '[sweep.grid.hyperparameters]\n"optimizer.lr" = [0.1]\n')
    (run,) = sweep.runs
    assert run.request.arguments["hyperparameters"] == {"epochs": 3, "optimizer.lr": 0.1}


def test_a_list_has_names_and_whole_tables(tmp_path: Path):
    sweep = read(
        tmp_path,
        "entry_point: train.py\nengine: ray\nsweep:\n  name: hosts\n  experiment: mix\n"
        "  max_concurrent: 2\n  runs:\n"
        "  - {name: small, instance_groups: [{name: gpu, type: g5.xlarge, count: 1}]}\n"
        "  - {instance_groups: [{name: gpu, type: g5.4xlarge, count: 1}]}\n",
        "any.yaml",
    )
    assert (sweep.name, sweep.experiment, sweep.max_concurrent) == ("hosts", "mix", 2)
    assert [run.name for run in sweep.runs] == ["hosts-small", "hosts-2"]
    assert [run.request.options["group"] for run in sweep.runs] == [
        ["gpu=1xg5.xlarge"], ["gpu=1xg5.4xlarge"],
    ]  # fmt: skip


def test_a_table_in_a_run_replaces_a_text(tmp_path: Path):
    sweep = read(
        tmp_path,
        'entry_point = "train.py"\n[inputs]\ntrain = "s3://b/a"\n[[sweep.runs]]\n'
        '[[sweep.runs]]\ninputs.train = {s3_data = "s3://b/c", input_mode = "FastFile"}\n',
    )
    channels = [run.request.options["channel"] for run in sweep.runs]
    assert channels == [["train=s3://b/a"], ["train=s3://b/c"]]


def test_secrets_do_not_count_in_what_a_run_is_known_by(tmp_path: Path):
    text = JOB + '[environment]\nAPI_TOKEN = "{}"\n[sweep.grid]\ninput_mode = ["File"]\n'
    one, other = (read(tmp_path, text.format(secret)).runs[0] for secret in ("abc1", "abc2"))
    assert one.digest == other.digest


@pytest.mark.parametrize(
    "key",
    [
        "hyperparameters.token_mixer",
        "hyperparameters.author-key",
        "environment.HF_TOKEN",
        "hyperparameters.lr",
    ],
)
def test_values_that_a_sweep_varies_count_in_what_its_runs_are_known_by(tmp_path: Path, key: str):
    text = JOB + '[environment]\nAPI_TOKEN = "canary one"\n[sweep.grid]\n'
    values = ["a1b2c3d4e5f6a7b8", "pooling", "mlp"]
    first = read(tmp_path, text + f"{key} = {values[:2]}".replace("'", '"')).runs
    second = read(tmp_path, text + f"{key} = {values[:3:2]}".replace("'", '"')).runs
    assert first[0].digest == second[0].digest
    assert len({run.digest for run in (*first, *second)}) == 3
    tried = (*values[:2], *values[:3:2])
    for run, value in zip((*first, *second), tried, strict=True):
        known = repr((dict(run.changes), dict(run.hidden_changes), run.digest))
        assert "canary" not in known
        assert (value in known) == (run.changes[key] != "***")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("args", '[["--token", "uvw"], ["--token", "xyz"]]'),
        ("hyperparameters.words", '["--api-key uvw", "--api-key xyz"]'),
        ("hyperparameters.url", '["postgres://user:uvw@db/x", "postgres://user:xyz@db/x"]'),
        ("hyperparameters", '[{token = "uvw"}, {token = "xyz"}]'),
        ("hyperparameters.tokens.first", '["uvw", "xyz"]'),
    ],
)
def test_secrets_within_values_that_vary_count_too(tmp_path: Path, key: str, values: str):
    text = f'entry_point = "train.py"\n[sweep.grid]\n{key} = {values}\n'
    runs = read(tmp_path, text).runs
    assert len({run.digest for run in runs}) == 2
    known = repr([(run.name, dict(run.changes), dict(run.hidden_changes)) for run in runs])
    assert "uvw" not in known


def test_a_secret_is_in_no_name_and_is_not_shown(tmp_path: Path):
    sweep = read(
        tmp_path,
        JOB
        + '[sweep.grid]\nenvironment.HF_TOKEN = ["hf_abcdefgh12345678", "hf_zyxwvuts87654321"]\n'
        'environment.DATABASE_URL = ["postgres://user:pa55word@db/x"]\ninput_mode = ["File"]\n',
    )
    assert [run.name for run in sweep.runs] == ["tried-File", "tried-File-2"]
    shown = {value for run in sweep.runs for value in run.changes.values()}
    assert shown == {"***", "File"}
    tokens = {run.request.variables["HF_TOKEN"] for run in sweep.runs}
    assert tokens == {"hf_abcdefgh12345678", "hf_zyxwvuts87654321"}


def test_names_stay_distinct_and_short(tmp_path: Path):
    near = read(tmp_path, JOB + '[sweep.grid]\nhyperparameters.x = ["a-3", "a", "a/", "a//"]\n')
    names = [run.name for run in near.runs]
    assert names == ["tried-a-3", "tried-a", "tried-a-3-3", "tried-a-4"]
    long = [f"{'v' * 200}{number}" for number in range(3)]
    sweep = read(tmp_path, JOB + f"[sweep.grid]\nhyperparameters.x = {long}\n".replace("'", '"'))
    names = [run.name for run in sweep.runs]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {120}
    odd = read(tmp_path, JOB + "[sweep.grid]\nhyperparameters.lr = [1e-05, -0.5, true, false]\n")
    assert [run.name for run in odd.runs] == [
        "tried-lr1e-05", "tried-lr-0.5", "tried-lr", "tried-no-lr",
    ]  # fmt: skip


def test_a_table_of_a_grid_is_not_shared_by_runs(tmp_path: Path):
    text = 'entry_point = "train.py"\n[sweep.grid]\nhyperparameters = [{a = 1}, {a = 2}]\n'
    sweep = read(tmp_path, text + '"hyperparameters.b" = [1, 2]\n')
    given = [run.request.arguments["hyperparameters"] for run in sweep.runs]
    assert given == [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    assert len({run.digest for run in sweep.runs}) == 4


def test_an_empty_table_clears_what_the_file_has(tmp_path: Path):
    text = JOB + '[environment]\nFOO = "1"\n[[sweep.runs]]\nname = "bare"\nenvironment = {}\n'
    assert read(tmp_path, text).runs[0].request.options["environment"] == []


def test_a_dotted_key_reaches_into_a_channel(tmp_path: Path):
    text = 'entry_point = "train.py"\n[inputs]\ntrain = {s3_data = "s3://b/a"}\n[sweep.grid]\n'
    sweep = read(tmp_path, text + '"inputs.train.input_mode" = ["File", "FastFile"]\n')
    modes = [run.request.options["input_mode"] for run in sweep.runs]
    assert modes == [["train=File"], ["train=FastFile"]]


@pytest.mark.parametrize(
    ("key", "url", "more", "below"),
    [
        ("checkpoint_uri", "s3://b/kept", "", "s3://b/kept/"),
        ("checkpoint_uri", "gs://b/kept/", 'contract = "vertex"\n', "gs://b/kept/"),
        ("checkpoint_s3_uri", "s3://b", "", "s3://b/"),
        ("checkpoint_uri", "kept", 'contract = "torchrun"\n', "kept/"),
        ("output_path", "gs://b/out", 'contract = "vertex"\n', "gs://b/out/"),
        ("output_path", "out/", 'contract = ["sagemaker", "vertex"]\n', "out/"),
    ],
)
def test_runs_do_not_go_on_from_each_other_s_checkpoints_or_overwrite_outputs(
    tmp_path: Path, key: str, url: str, more: str, below: str
) -> None:
    head = f'{more}{key} = "{url}"\n{JOB}'
    for runs in (
        "[sweep.grid]\nhyperparameters.lr = [0.1, 0.2]\n",
        '[[sweep.runs]]\nname = "lr0.1"\n[[sweep.runs]]\nname = "lr0.2"\n',
    ):
        sweep = read(tmp_path, head + runs)
        name = "checkpoint_uri" if key == "checkpoint_s3_uri" else key
        places = [run.request.options[name] for run in sweep.runs]
        assert places == [[f"{below}tried-lr0.1"], [f"{below}tried-lr0.2"]]
        # As a further attempt has them, and whatever the other runs are:
        assert [run.request.arguments[key] for run in sweep.runs] == [each for (each,) in places]


def test_a_url_that_a_run_has_for_itself_stays_and_so_does_one_with_jobs_below_it(tmp_path: Path):
    text = 'checkpoint_uri = "a"\noutput_path = "out"\n' + JOB
    text += '[[sweep.runs]]\ncheckpoint_uri = "b"\n[[sweep.runs]]\n'
    options = [run.request.options for run in read(tmp_path, text).runs]
    assert [each["checkpoint_uri"] for each in options] == [["b"], ["a/tried-2"]]
    assert [each["output_path"] for each in options] == [["out"], ["out"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (JOB, r"it has no table \[sweep.grid\]"),
        (JOB + "[sweep]\n", "sweep.grid is empty"),
        (JOB + "[sweep]\ngrid = 5\n", "sweep.grid: 5 is no table of lists"),
        (JOB + '[sweep]\ngrid = ["File"]\n', r"sweep.grid: \['File'\] is no table of lists"),
        (JOB + "[sweep]\ngird = {}\n", "gird.*grid"),
        (JOB + "[sweep.grid]\n", "sweep.grid is empty"),
        (JOB + "[sweep.grid]\ninput_mode = []\n", "sweep.grid.input_mode: .*give a list"),
        (JOB + '[sweep.grid]\ninput_mode = "File"\n', "sweep.grid.input_mode: 'File': give a list"),
        (JOB + '[sweep.grid]\ninput_mode = ["File", "File"]\n', "File is there twice"),
        (JOB + '[sweep.grid]\ninput_mod = ["File"]\n', "no argument input_mod.*input_mode"),
        (JOB + '[sweep.grid]\ninput_mode = ["Fiel"]\n', "run tried-Fiel: input_mode.*Fiel"),
        (JOB + '[sweep]\nname = "a/b"\n[sweep.grid]\ninput_mode = ["File"]\n', "plain folder name"),
        (JOB + "[sweep]\nmax_concurrent = 2\n[[sweep.runs]]\n", 'engine = "ray"'),
        (JOB + "[sweep]\nmax_concurrent = true\n[[sweep.runs]]\n", "whole number, 1 or more"),
        (JOB + "[sweep]\nruns = []\n", "give a table for each"),
        (JOB + "[sweep]\nruns = [3]\n", "3 is no table"),
        (JOB + "[[sweep.runs]]\nname = 3\n", "name 3 is no text"),
        (JOB + "[[sweep.runs]]\njob_name = 'x'\n", "write it as name"),
        (JOB + "[[sweep.runs]]\nname = 'x'\n[[sweep.runs]]\nname = 'x'\n", "be called tried-x"),
        (JOB + '[sweep.grid]\n"hyperparameters.a" = [1]\nhyperparameters.a = [2]\n', "there twice"),
        ('entry_point = "train.py"\ninputs = "/a"\n[[sweep.runs]]\ninputs.other = "/b"\n',
         "inputs is no table in this file"),
        (JOB + "[[sweep.runs]]\n[sweep.grid]\ninput_mode = ['File']\n", "give one of them"),
        ('job_name = "x"\n' + JOB + "[[sweep.runs]]\n", "a sweep names its runs itself"),
        ("[sweep.grid]\ninput_mode = ['File']\n", "entry_point is missing"),
        (JOB + f"[sweep.grid.hyperparameters]\na = {list(range(200))}\nb = {list(range(200))}\n",
         "40,000 combinations"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        '[sweep.grid]\nhyperparameters.api_key = "canary one"\n',
        '[sweep.grid]\nhyperparameters.api_key = ["canary one", "canary one"]\n',
        '[sweep]\ngrid = [{api_key = "canary one"}]\n',
        '[sweep]\nruns = ["api_key=canary one"]\n',
    ],
)
def test_no_secret_of_what_is_wrong_is_shown(tmp_path: Path, text: str):
    with pytest.raises(UsageError, match=r"\*\*\*") as raised:
        read(tmp_path, JOB + text)
    assert "canary" not in str(raised.value)
    assert "one" not in str(raised.value)


def test_other_files_are_refused(tmp_path: Path):
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match="a sweep is a job file"):
        read_sweep(tmp_path / "train.py")
    with pytest.raises(UsageError, match="There is no job file"):
        read_sweep(tmp_path / "none.toml")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.name)
def test_the_examples_are_sweeps(file: Path):
    sweep = read_sweep(file)
    assert len(sweep.runs) >= 3
    assert (EXAMPLES.parents[1] / sweep.runs[0].request.script).is_file()
    assert len({run.digest for run in sweep.runs}) == len(sweep.runs)
