"""Observation of a run: the probe, the what-if model and the doctor."""
