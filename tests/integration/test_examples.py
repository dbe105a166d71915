"""The scripts of examples/: they train, resume and read their data."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
import torch
import transformers

from data_verbs import run_data_verb

pytestmark = pytest.mark.timeout(900)  # a call alone may take more than the usual limit

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
SEGMENTATION = EXAMPLES / "segmentation"
DRAWN = {1, 7, 8, 11, 17, 20, 21, 23, 24, 26}  # our bonnet, and the nine classes
TINY_SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 8, 16, 16],
    "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 8,
}


def call(*command: object, cwd: Path) -> str:
    # One thread a process: several of them share the cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def headrace(*arguments: object, cwd: Path) -> str:
    return call("-m", "headrace.cli.main", *arguments, cwd=cwd)


def prepare_data(*arguments: str | Path, cwd: Path) -> None:
    done = run_data_verb(cwd, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def main_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Call an example's main() within this process, which has imported its libraries already."""

    def call_main(name: str, run: Path, *arguments: object) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HEADRACE_RUN_DIR", str(run))
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the ranks: no threads that wait busily, none before a fork
        try:
            example(name).main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return call_main


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_train", EXAMPLES / name / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metrics(run: Path, kind: str) -> list[dict]:
    """The epochs of the example that measures this."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if kind in row]


@pytest.fixture(scope="module")
def streets(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("streets")
    call(SEGMENTATION / "streets.py", root / "a", "--train=12", "--val=6", "--workers=1",
         "--image-format=jpg", cwd=root)  # fmt: skip
    return root / "a"


@pytest.fixture(scope="module")
def png_streets(tmp_path_factory) -> Path:
    """Scenes as Cityscapes has them: images are PNG, like their masks."""
    root = tmp_path_factory.mktemp("png-streets")
    call(SEGMENTATION / "streets.py", root, "--train=0", "--val=2", "--workers=1", cwd=root)
    return root


def test_scenes_are_the_same_on_any_number_of_workers(streets, tmp_path):
    call(SEGMENTATION / "streets.py", tmp_path / "b", "--train=7", "--val=5", "--workers=2",
         "--image-format=jpg", cwd=tmp_path)  # fmt: skip
    on_two_workers = contents(tmp_path / "b")
    assert len(on_two_workers) == 2 * (7 + 5)
    assert on_two_workers.items() <= contents(streets).items()


def test_scenes_lie_as_cityscapes_does_and_show_every_class(streets):
    masks = sorted((streets / "gtFine").glob("*/*/*_gtFine_labelIds.png"))
    assert len(masks) == 18
    seen: set[int] = set()
    for path in masks:
        split, city = path.parts[-3:-1]
        name = path.name.removesuffix("_gtFine_labelIds.png")
        image = streets / "leftImg8bit" / split / city / f"{name}_leftImg8bit.jpg"
        assert cv2.imread(str(image)).shape == (256, 512, 3)
        mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        assert mask.shape == (256, 512)
        assert set(np.unique(mask).tolist()) <= DRAWN
        seen |= set(np.unique(mask).tolist())
    assert seen >= DRAWN - {1}


def test_labels_are_cityscapes_own():
    labels = json.loads((SEGMENTATION / "labels.json").read_text())
    # cityscapesscripts/helpers/labels.py, those with a train id.
    expected = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    assert [label["label_id"] for label in labels] == expected
    assert [label["train_id"] for label in labels] == list(range(19))


@pytest.fixture(scope="module")
def two_ranks(streets: Path, png_streets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both examples have trained for an epoch on the same two ranks; the folder of all of it."""
    folder = tmp_path_factory.mktemp("two-ranks")
    # Both layouts in one run: JPEG images to train on, PNG images, as Cityscapes has, held out.
    for split, source in (("train", streets), ("val", png_streets)):
        words = ("pack", source, folder / "streets" / split, f"--split={split}")
        prepare_data(*words, "--shard-size=256KiB", "--workers=1", cwd=folder)
    (folder / "tiny.json").write_text(json.dumps(TINY_SEGFORMER))
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        for number, color in enumerate(((40, 40, 200), (40, 200, 40))):
            images = folder / "colors" / split / f"class{number}"
            images.mkdir(parents=True)
            for index in range(count):
                pixels = rng.normal(color, 30, (48, 64, 3)).clip(0, 255).astype(np.uint8)
                cv2.imwrite(str(images / f"{index}.jpg"), pixels)
        prepare_data("index", folder / "colors" / split, cwd=folder)
    tiny_resnet().save_pretrained(folder / "tiny")
    scripts = [
        ["segmentation/train.py", *segmentation(folder), "--batch-size=2"],
        ["imagenet/train.py", *imagenet(folder), "--strategy=fsdp", "--batch-size=4"],
    ]
    words = json.dumps([[str(EXAMPLES / name), *more, "--epochs=1"] for name, *more in scripts])
    flags = [f"--run-dir={folder / 'run'}", "--nproc-per-node=2"]
    headrace("run", *flags, TESTS / "scripts" / "examples_in_turn.py", words, cwd=folder)
    return folder


def segmentation(folder: Path) -> list[str]:
    data, config = f"--data={folder / 'streets'}", f"--config={folder / 'tiny.json'}"
    return [data, config, "--crop", "64", "128", f"--checkpoints={folder / 'of-streets'}"]


def imagenet(folder: Path) -> list[str]:
    data, begun_with = f"--data={folder / 'colors'}", f"--pretrained={folder / 'tiny'}"
    return [data, begun_with, "--size=32", f"--checkpoints={folder / 'of-colors'}"]


def test_segmentation_trains_on_two_ranks_and_resumes_on_one(two_ranks: Path, main_of):
    run = two_ranks / "run"
    (first,) = metrics(run, "val_miou")
    assert (first["epoch"], first["step"]) == (0, 3)  # 12 scenes, 4 a step
    assert 0 <= first["val_miou"] <= 1
    assert set(first["iou"]) <= {"road", "sidewalk", "building", "pole", "traffic sign",
                                 "vegetation", "sky", "person", "car"}  # fmt: skip
    assert 0 <= first["data_wait_share"] <= 1
    assert first["images_per_s"] > 0

    one_rank = ["--strategy=none", "--resume", "--epochs=2", "--batch-size=4"]
    printed = main_of("segmentation", run, *segmentation(two_ranks), *one_rank)
    assert "resumed at step 3, in epoch 1" in printed
    assert [(row["epoch"], row["step"]) for row in metrics(run, "val_miou")] == [(0, 3), (1, 6)]


def test_imagenet_trains_from_class_folders_with_fsdp_and_resumes_with_dp(two_ranks: Path, main_of):
    run = two_ranks / "run"
    (row,) = metrics(run, "val_top1")
    assert row["step"] == 2
    assert 0 <= row["val_top1"] <= row["val_top5"] == 1

    dp = ["--strategy=dp", "--resume", "--epochs=2", "--batch-size=8"]
    printed = main_of("imagenet", run, *imagenet(two_ranks), *dp)
    assert "resumed at step 2, in epoch 1" in printed
    assert [(row["epoch"], row["step"]) for row in metrics(run, "val_top1")] == [(0, 2), (1, 4)]


@pytest.mark.parametrize(("name", "parameters"), [("resnet50", 23_522_375), ("vit", 85_656_583)])
def test_an_image_classifier_is_new_without_a_folder(name: str, parameters: int):
    with torch.device("meta"):  # its shape alone
        model = example("imagenet").network(name, None, 7, 32)
    assert sum(each.numel() for each in model.parameters()) == parameters


def test_a_segformer_in_a_folder_is_begun_with(tmp_path):
    shape = transformers.SegformerConfig(**TINY_SEGFORMER, num_labels=5)
    saved = transformers.SegformerForSemanticSegmentation(shape)
    segmentation = example("segmentation")
    assert begun_with(saved, tmp_path, lambda folder: segmentation.segformer(None, folder)) == {
        "decode_head.classifier.weight",  # for other classes
        "decode_head.classifier.bias",
    }


def tiny_resnet() -> transformers.PreTrainedModel:
    shape = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=5
    )
    return transformers.ResNetForImageClassification(shape)


def tiny_vit() -> transformers.PreTrainedModel:
    shape = transformers.ViTConfig(
        image_size=32,
        patch_size=16,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=5,
    )
    return transformers.ViTForImageClassification(shape)


@pytest.mark.parametrize(
    ("name", "saved", "made_new"),
    [
        ("resnet50", tiny_resnet, {"classifier.1.weight", "classifier.1.bias"}),
        ("vit", tiny_vit, {"classifier.weight", "classifier.bias"}),
    ],
)
def test_an_image_classifier_in_a_folder_is_begun_with(tmp_path, name, saved, made_new):
    imagenet = example("imagenet")
    new = begun_with(saved(), tmp_path, lambda folder: imagenet.network(name, folder, 7, 32))
    assert new == made_new


def begun_with(saved, folder: Path, network) -> set[str]:
    """Save a model, begin with it, and return the names of the weights that are new."""
    saved.save_pretrained(folder)
    before, after = saved.state_dict(), network(str(folder)).state_dict()
    assert before.keys() == after.keys()
    return {
        name
        for name, weight in before.items()
        if weight.shape != after[name].shape or not torch.equal(weight, after[name])
    }
