"""The what-if model: measured batches, simulated again under a change of the pipeline. No torch."""
