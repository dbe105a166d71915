"""What records a running job: hooks in ranks and workers, and one process a host."""
