"""Experiments: runs with parameters, metrics and time series, kept in MLflow, and their frames."""
