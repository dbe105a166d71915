"""The what-if model: measured batches, simulated again with a changed pipeline. No torch."""
