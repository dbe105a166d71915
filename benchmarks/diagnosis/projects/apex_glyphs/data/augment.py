import numpy as np
import torch
from torchvision import transforms


def to_uint8_tensor(image):
    """The mean is taken off later, in the prefetcher, on the device."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def build_train_transform(args):
    ops = [
        transforms.RandomResizedCrop(args.crop, scale=(0.5, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.2, 0.2),
    ]
    if args.elastic:
        ops.append(transforms.ElasticTransform(alpha=args.elastic_alpha, sigma=args.elastic_sigma))
    ops.append(transforms.Lambda(to_uint8_tensor))
    return transforms.Compose(ops)
