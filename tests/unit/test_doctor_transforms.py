"""Which transform is named for the code that takes the workers' time."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.findings import Cause
from run_tables import WORKER_LOOP, Run, play, stack

SOURCE = """\
class Warp:
    def __call__(self, image):
        return shifted(image)


class Faces(Dataset):
    def __getitem__(self, number):
        image = Image.open(self.files[number]).convert("RGB")
        return self.jitter(self.warp(image))


class Jitter(Base):
    @torch.no_grad()
    def forward(self, image):
        return image * random.random()


def shifted(image):
    return image.roll(1)


def joined(samples):
    return torch.stack(pad(samples))
"""
DECODES = "8:Faces.__getitem__"
WARP, JITTER = ("Faces.warp: Warp", 2), ("Faces.jitter: Jitter", 13)


def cause(tmp_path: Path, *, shares: dict[tuple[str, int], float], source: str, hot: list[str]
) -> Cause:  # fmt: skip
    """Return what is named where workers spend seven tenths of their time at `hot`."""
    script = tmp_path / "train.py"
    if source:
        script.write_text(source, encoding="utf-8")
    at, elsewhere = ([WORKER_LOOP, *(f"{script}:{each}" for each in line)] for line in (
        hot, ["9:Faces.__getitem__"],
    ))  # fmt: skip
    run = Run(
        workers=2, service_ms=33, busy_cores=2, cores=2,
        worker_stacks=[(stack(*at), 0.7, 1.0), (stack(*elsewhere), 0.3, 1.0)],
        transforms=[(name, str(script), line, share) for (name, line), share in shares.items()],
    )  # fmt: skip
    found = next(each for each in diagnose(play(run)).findings if each.cause is not None)
    assert found.cause is not None
    return found.cause


@pytest.mark.parametrize("source", [SOURCE, ""], ids=["with its source", "without"])
@pytest.mark.parametrize(
    ("shares", "hot", "named"),
    [
        ({WARP: 0.3}, [DECODES], ""),  # the dataset's own code, after a transform's
        ({JITTER: 0.3}, ["9:Faces.__getitem__", "19:shifted"], ""),  # no transform calls it
        (
            {WARP: 0.7, JITTER: 0.3},
            ["9:Faces.__getitem__", "3:Warp.__call__", "19:shifted"],
            "Faces.warp: Warp",
        ),
        ({JITTER: 0.7}, ["9:Faces.__getitem__", "15:Jitter.forward"], "Faces.jitter: Jitter"),
        ({WARP: 0.1}, ["9:Faces.__getitem__", "3:Warp.__call__"], ""),  # by its clock it is little
    ],
)
def test_a_transform_is_named_for_its_own_code_alone(
    tmp_path: Path, source: str, shares: dict[tuple[str, int], float], hot: list[str], named: str
):
    found = cause(tmp_path, shares=shares, source=source, hot=hot)
    assert found.transform == named
    assert f"{found.line}:{found.function}" == hot[-1]


def test_a_transform_whose_method_another_class_has_is_named(tmp_path: Path):
    shares = {("Faces.warp: Bend", 2): 0.7}  # class Bend(Warp)
    hot = ["9:Faces.__getitem__", "3:Warp.__call__"]
    assert cause(tmp_path, shares=shares, source=SOURCE, hot=hot).transform == "Faces.warp: Bend"


def test_a_collate_function_is_named_for_its_own_code_alone(tmp_path: Path):
    collate = {("collate_fn", 22): 0.5}
    found = cause(tmp_path, shares=collate, source=SOURCE, hot=["23:joined"])
    assert found.transform == "collate_fn"
    first = {("collate_fn", 2): 0.5}  # above the dataset
    assert cause(tmp_path, shares=first, source=SOURCE, hot=[DECODES]).transform == ""


LIBRARY = "/venv/lib/python3.11/site-packages/torchvision/transforms/transforms.py"


@pytest.mark.parametrize(
    ("shares", "named", "share"),
    [
        ({"ElasticTransform": 0.6, "ColorJitter": 0.2}, "ElasticTransform", 0.6),
        ({"ElasticTransform": 0.3, "ColorJitter": 0.5}, "", 0.8),  # by its clock it is little
    ],
)
def test_a_librarys_transform_that_a_line_of_the_dataset_calls_is_named(
    shares: dict[str, float], named: str, share: float
):
    line = f"{WORKER_LOOP}\n/job/train.py:9:Faces.__getitem__"
    calls = f"{line}\n{LIBRARY}:95:Compose.__call__\n{LIBRARY}"
    stacks = [
        (f"{calls}:2160:ElasticTransform.forward", 0.6, 1.0),
        (f"{calls}:1277:ColorJitter.forward", 0.2, 1.0),
        (f"{WORKER_LOOP}\n/job/train.py:8:Faces.__getitem__", 0.2, 1.0),
    ]
    numbers = {"ElasticTransform": 2145, "ColorJitter": 1268}
    run = Run(
        workers=2, service_ms=33, busy_cores=2, cores=2, worker_stacks=stacks,
        transforms=[
            (f"Faces.transform.transforms[{at}]: {name}", LIBRARY, numbers[name], part)
            for at, (name, part) in enumerate(shares.items())
        ],
    )  # fmt: skip
    found = next(each for each in diagnose(play(run)).findings if each.cause is not None)
    assert found.cause is not None
    assert found.cause.name == (named or "Faces.__getitem__")
    assert found.cause.place == "train.py:9"
    assert found.cause.share == pytest.approx(share, abs=0.02)
