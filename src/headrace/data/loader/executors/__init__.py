"""Executors of a loader: whoever makes its batches."""
