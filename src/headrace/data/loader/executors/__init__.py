"""The executors of a loader, which make its batches, and their protocol."""
