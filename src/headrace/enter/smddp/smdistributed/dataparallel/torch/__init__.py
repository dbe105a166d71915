"""The part for PyTorch."""
