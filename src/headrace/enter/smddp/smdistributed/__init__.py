"""Stands for SageMaker's package of that name where that is not installed."""
