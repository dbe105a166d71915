"""Normalisation on the device, for whole batches.

It only calls methods of the tensors passed to it, so this module imports no torch and workers stay
without it.
"""

from __future__ import annotations

from typing import Any, Literal

from headrace.core.errors import UsageError

# Mean and deviation of ImageNet's training images, as pretrained models expect them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalize:
    """Convert a batch of uint8 images to a model's input: float, B x C x H x W, normalised.

    Pass it as `DataLoader(device_transform=)`, so that bytes are copied to the device and floats
    are made there. The result has the memory order of the batch (channels last), the fastest for
    convolutions on CUDA.

    Args:
        member: Name of the images where the batch is a dict; None where the batch is a tensor.
        mean: Mean of each channel, as a share of 255.
        std: Deviation of each channel, as a share of 255.
        dtype: The type of the result.
    """

    def __init__(
        self,
        member: str | None = None,
        *,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    ) -> None:
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise UsageError(f"mean={mean} and std={std}: one of each a channel, std above 0.")
        if dtype not in {"float32", "float16", "bfloat16"}:
            raise UsageError(f"dtype={dtype!r}: float32, float16 and bfloat16 can be made.")
        self.member, self.mean, self.std, self.dtype = member, mean, std, dtype
        self._constants: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, batch: Any) -> Any:
        """Normalise uint8[B, H, W, C] to float[B, C, H, W]; other members are unchanged."""
        if self.member is None:
            return self._normalize(batch)
        return {**batch, self.member: self._normalize(batch[self.member])}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}

    def _normalize(self, images: Any) -> Any:
        if images.ndim != 4 or images.shape[3] != len(self.mean):
            raise UsageError(
                f"Normalize got a batch of shape {tuple(images.shape)}; it takes uint8[B, H, W, "
                f"{len(self.mean)}], as the loader delivers images."
            )
        factor, offset = self._on_device(images)
        pixels = images.permute(0, 3, 1, 2).float()
        result = pixels.mul_(factor).add_(offset)
        return result if self.dtype == "float32" else getattr(result, _CASTS[self.dtype])()

    def _on_device(self, images: Any) -> tuple[Any, Any]:
        """Return factor and offset on the images' device, copied there once."""
        if images.device not in self._constants:
            ones = images.new_ones(()).float()
            factor = ones.new_tensor([1 / (255 * std) for std in self.std])
            offset = ones.new_tensor(
                [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
            )
            self._constants[images.device] = (factor.view(1, -1, 1, 1), offset.view(1, -1, 1, 1))
        return self._constants[images.device]


_CASTS = {"float16": "half", "bfloat16": "bfloat16"}
