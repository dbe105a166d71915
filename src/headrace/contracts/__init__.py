"""Environments that other launchers make, read and made: torchrun, SageMaker, Vertex AI. Pure."""
