import argparse
import runpy
import tempfile
import time
from pathlib import Path

import torch

import engine.hooks  # noqa: F401  (fills the registry)
import engine.runner  # noqa: F401
import models.encoder  # noqa: F401
from data.patches import build_loader, write_patches
from engine.registry import MODELS, RUNNERS

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=str(HERE / "configs" / "moco_small.py"))
    parser.add_argument("--ckpt-interval", type=int, default=None, help="0: none")
    parser.add_argument("--max-epochs", type=int, default=None)
    args = parser.parse_args()

    cfg = {k: v for k, v in runpy.run_path(args.config).items() if not k.startswith("__")}
    for hook in cfg["hooks"]:
        if hook["type"] == "CheckpointHook" and args.ckpt_interval is not None:
            hook["interval"] = args.ckpt_interval
    if args.max_epochs is not None:
        cfg["runner"]["max_epochs"] = args.max_epochs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="moco_") as work_dir:
        path = write_patches(work_dir, cfg["work"]["images"], cfg["work"]["size"])
        loader = build_loader(path, cfg["work"]["crop"], **cfg["data"])

        model = MODELS.build(cfg["model"])
        opt_cfg = dict(cfg["optimizer"])
        optimizer = getattr(torch.optim, opt_cfg.pop("type"))(model.parameters(), **opt_cfg)
        runner = RUNNERS.build(cfg["runner"], model=model, optimizer=optimizer, work_dir=work_dir)
        runner.register_hooks(cfg["hooks"])

        start = time.time()
        runner.run(loader)
        print(f"rate: {runner.samples / (time.time() - start):.1f} samples/s")
        print("done")


if __name__ == "__main__":
    main()
