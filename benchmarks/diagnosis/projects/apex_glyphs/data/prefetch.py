import torch


class data_prefetcher:
    """After NVIDIA apex's examples/imagenet/main_amp.py (without the CUDA stream on the CPU)."""

    def __init__(self, loader):
        self.loader = iter(loader)
        self.mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255]).view(1, 3, 1, 1)
        self.std = torch.tensor([0.229 * 255, 0.224 * 255, 0.225 * 255]).view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = None
            self.next_target = None
            return
        self.next_input = self.next_input.float().sub_(self.mean).div_(self.std)

    def next(self):
        input = self.next_input
        target = self.next_target
        self.preload()
        return input, target
