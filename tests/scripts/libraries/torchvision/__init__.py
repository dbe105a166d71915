"""A stand-in for torchvision: a folder of images and its stock transforms."""
