"""Which modules tests may import, so that the inside of a package can be moved.

A test goes through public names, the command line, the front of a package, or a pure module:
values in, values out. The lists hold what is used and nothing else, so that they grow only by
intent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
PUBLIC = {
    "headrace", "headrace.experiments", "headrace.sagemaker", "headrace.train",
    "headrace.transforms", "headrace.vertex",
}  # fmt: skip
FRONTS = """
    bootstrap.ray_hooks cli.main cluster.agent cluster.host_identity cluster.join_connections
    cluster.ray_cluster cluster.ray_node cluster.requirements_installer core.env core.files
    core.import_hooks core.process.mount_namespace core.process.parent_death
    core.process.process_groups core.process.process_kill core.process.sidecar
    core.process.supervision core.scratch_folder core.world data.channels.copy.fetcher
    data.channels.mount.folder_mount data.channels.mount.mount_program
    data.channels.pipe.epoch_pipes data.channels.resolve data.loader.batch_builder
    data.loader.dataloader
    data.loader.executors.process data.loader.library_state data.loader.memory_budget
    data.loader.workers.forkserver
    data.loader.workers.messages data.loader.workers.pool data.loader.workers.shared_memory
    data.shards.in_place_index data.shards.lint data.shards.pack data.shards.reports
    data.shards.shard_packer data.storage.cache.cached_store data.storage.client.credentials
    data.storage.client.fork_state data.storage.client.retries
    data.storage.client.subprocess_client data.storage.client.subprocess_protocol
    data.storage.client.subprocess_server
    data.storage.store data.transforms.decode data.transforms.resize decide.cost.advice
    decide.cost.host_speeds decide.cost.predicted_mixes decide.cost.run_cost
    decide.experiments.compared_runs decide.experiments.metric_curves
    decide.experiments.run_target decide.experiments.spool decide.experiments.sync
    jobs.environment.host_environment jobs.environment.script_command
    jobs.environment.script_environment jobs.failure
    jobs.host_run jobs.hosts.cluster_join jobs.metric_scraper jobs.output jobs.requirements
    jobs.sync.host_sync jobs.sync.output_process jobs.sync.sync_process jobs.torchrun
    jobs.torchrun_args jobs.torchrun_process jobs.tune observe.whatif.measured_pipeline
    offload.connection offload.proxy offload.server offload.unauthenticated
    platforms.instance_groups platforms.sagemaker records.attempt_outcomes records.collector
    records.host_place
    records.layout records.live_reader records.live_switch records.outbox records.reader
    records.records_link records.ring records.run_folder records.schema records.sent_rows
    records.span_reader records.system_table report.comparison_page report.live.app
    report.live.run_folders report.page
    report.sections.diagnosis report.top.run_watcher report.top.screen
""".split()  # noqa: SIM905 - names, as a paragraph
"""What other packages import, or run: checked below."""
PURE = """
    bootstrap.offload_hooks bootstrap.process_start cli.compare_report cli.doctor_report
    cli.progress_view cli.report cli.top cluster.offload_fleet core.errors core.json_checksum
    core.overrides core.source_location core.units core.warning_frames data.channels.listing
    data.channels.sidecar_client
    data.image_files data.loader.arguments data.loader.collate data.loader.dataset_protocol
    data.loader.executors.base data.loader.executors.dispatch data.loader.executors.iterable
    data.loader.failures data.loader.serialization data.shards.data_files data.shards.index_rows
    data.shards.index_writer data.shards.manifest data.shards.members data.shards.shard_index
    data.shards.shard_records data.shards.sources.sample_table data.shards.sources.source_kinds
    data.shards.sources.tables data.shards.tar data.shards.tar_index data.storage
    data.storage.cache.block_file data.storage.urls data.transforms data.transforms.augmentation
    decide.cost.host_mixes decide.cost.price_catalogue decide.cost.run_use
    decide.experiments.entry_batch decide.experiments.event_file_importer
    decide.experiments.sent_state decide.experiments.spool_sender
    jobs.cli_args jobs.environment.unmounted_folder jobs.hosts.host_commands
    jobs.hosts.host_records
    jobs.hosts.offload_setup jobs.hosts.report_calls jobs.hosts.script_ray jobs.hosts.spool_copies
    jobs.job_file jobs.job_request jobs.options jobs.sagemaker_sdk.config
    jobs.sagemaker_sdk.debugger jobs.sagemaker_sdk.inputs jobs.spec jobs.sweep.sweep_file
    jobs.sync.remote_copy jobs.vertex_sdk.worker_pools observe.doctor.core_contention
    observe.doctor.debugger_rules observe.doctor.diagnosis observe.doctor.epoch_begins
    observe.doctor.evidence observe.doctor.findings observe.doctor.gpu_usage
    observe.doctor.leak_candidates observe.doctor.remedies observe.doctor.rules
    observe.doctor.rules.batch_making observe.doctor.scaling_forecast observe.doctor.skip_statements
    observe.doctor.stack_frames observe.doctor.stack_samples observe.probe.batch_samples
    observe.probe.device_clock observe.probe.device_copies observe.probe.event_log
    observe.probe.file_reads observe.probe.gpu_metrics observe.probe.graph_replays
    observe.probe.host_resources observe.probe.iterator_state observe.probe.library_batches
    observe.probe.loaders observe.probe.process_cores observe.probe.process_usage
    observe.probe.rank_claims observe.probe.rank_loaders observe.probe.relayed_calls
    observe.probe.report_queue observe.probe.sampler_reads observe.probe.shared_batches
    observe.probe.slow_steps observe.probe.step_clock observe.probe.step_segments
    observe.probe.thread_stack
    observe.probe.timing_rates observe.probe.transform_timer observe.whatif.allowed_cores
    observe.whatif.comparison
    observe.whatif.core_waits observe.whatif.hosts observe.whatif.loader_numbers
    observe.whatif.loaders_in_turn
    observe.whatif.measured_pipeline observe.whatif.offload_stats observe.whatif.prediction
    observe.whatif.simulation observe.whatif.tables observe.whatif.train_steps
    observe.whatif.worker_shares offload.capacity offload.frames offload.protocol
    offload.proxy_records offload.scheduler platforms.cluster_hosts platforms.script_contract
    platforms.training_job platforms.vertex records.data_frames records.redaction
    report.charts.base report.charts.flame
    report.charts.heatmap report.charts.lines report.charts.long_runs report.charts.phases
    report.charts.steps report.charts.waits report.formatting report.live.access_token
    report.live.guard report.markup report.open_run
    report.run_command report.span_tables report.top.state sampling sampling.lanes sampling.seeds
    train.checkpoint_commit train.state_dicts train.strategies
""".split()  # noqa: SIM905 - names, as a paragraph
"""No process, thread, socket or file at import or in a signature; `IMPURE` is checked."""
IMPURE = {
    "asyncio", "ctypes", "fcntl", "mmap", "multiprocessing", "obstore", "psutil", "ray", "select",
    "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading",
}  # fmt: skip


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of Headrace that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("headrace"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
            for each in node.names:
                below = f"{node.module}.{each.name}"
                is_module = (SOURCE / f"{below.replace('.', '/')}.py").exists()
                is_package = (SOURCE / below.replace(".", "/") / "__init__.py").exists()
                yield below if is_module or is_package else str(node.module)


def source_of(name: str) -> Path:
    """Return the file of a module, named without ``headrace``."""
    path = SOURCE / "headrace" / f"{name.replace('.', '/')}.py"
    return path if path.exists() else path.with_suffix("") / "__init__.py"


def files() -> Iterator[Path]:
    """Yield the files of tests, and the scripts that they run."""
    for path in sorted(TESTS.rglob("*.py")):
        if "artefacts" not in path.relative_to(TESTS).parts:
            yield path


def test_tests_go_through_what_is_listed():
    listed = {f"headrace.{name}" for name in (*FRONTS, *PURE)} | PUBLIC
    used = set()
    for path in files():
        found = set(imported(path))
        used |= found
        assert found <= listed, f"{path.relative_to(TESTS)}: {sorted(found - listed)}"
    assert listed <= used, f"used no more: {sorted(listed - used)}"


def test_a_front_is_imported_by_another_package_or_is_a_program():
    sources = list((SOURCE / "headrace").rglob("*.py"))
    imported_elsewhere = {
        name
        for path in sources
        for name in imported(path)
        if source_of(name.removeprefix("headrace.")).parent != path.parent
    }
    texts = [path.read_text() for path in sources]
    for name in FRONTS:
        # Some are started as a child process, by the name of their function (`ChildProcess`).
        is_child = any(f'"headrace.{name}:main"' in text for text in texts)
        is_program = is_child or "__main__" in source_of(name).read_text()
        assert is_program or f"headrace.{name}" in imported_elsewhere, name


def test_what_is_listed_as_pure_is_pure():
    for name in PURE:
        tops = {
            (each.module if isinstance(each, ast.ImportFrom) else each.names[0].name) or ""
            for each in ast.walk(ast.parse(source_of(name).read_text()))
            if isinstance(each, ast.Import | ast.ImportFrom)
        }
        assert not IMPURE & {top.partition(".")[0] for top in tops}, name
