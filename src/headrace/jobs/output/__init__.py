"""Output of a job's processes: log files and the terminal."""
