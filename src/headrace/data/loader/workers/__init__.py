"""Worker processes of a loader: forkserver, pool, messages, shared memory."""
