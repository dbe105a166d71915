"""The same training with Ray Data and Ray Train: Ray spreads the preparation over the cluster.

    headrace cluster join --driver train_ray.py

On every host of the job; or `headrace run train_ray.py`, on this machine alone.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import ray
import ray.data
import ray.train.torch
import torch
from pace import Pace
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from vit import SHAPES, network

from images import make_batch, prepare_batch

LOG = logging.getLogger(__name__)


def main() -> None:
    """Train for an epoch, with a worker for each device of the cluster."""
    args = parse()
    ray.init()  # the cluster that RAY_ADDRESS names, or one on this machine
    ray.data.DataContext.get_current().enable_progress_bars = False
    devices = int(ray.cluster_resources().get("GPU", 0))
    workers = devices or 1
    # Without a device to look for, Ray would train on any host: it is to be this one.
    here = {"CPU": 1, f"node:{ray.util.get_node_ip_address()}": 0.001}
    resources = None if devices else here
    images = (
        ray.data.range(args.batch_size * args.steps * workers)
        .map_batches(make_batch, batch_size=args.batch_size)
        .map_batches(prepare_batch, batch_size=args.batch_size)
    )
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=devices > 0, resources_per_worker=resources
        ),
        datasets={"train": images},
    )
    trainer.fit()


def train(config: dict[str, Any]) -> None:
    """Train on this worker's part of the images."""
    device = ray.train.torch.get_device()
    model = ray.train.torch.prepare_model(network(config["model"], device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    model.train()
    pace = Pace(config["every"])
    batches = ray.train.get_dataset_shard("train").iter_torch_batches(
        batch_size=config["batch_size"], prefetch_batches=config["prefetch"], device=device
    )
    for batch in batches:
        loss = loss_of(model(batch["image"]).logits, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pace.step(loss):
            LOG.info(pace)  # Ray would show what is printed twice
            ray.train.report({"loss": pace.loss, "step_s": pace.step_s})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a ViT on random images, with Ray.")
    add = parser.add_argument
    add("--batch-size", type=int, default=64, help="of each worker")
    add("--steps", type=int, default=1000, help="of each worker")
    add("--prefetch", type=int, default=4, help="batches fetched ahead")
    add("--every", type=int, default=100, help="steps between two lines about them")
    add("--model", choices=SHAPES, help="base on a GPU, tiny without one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
