"""A stand-in for SageMaker's package of that name where that is not installed."""
