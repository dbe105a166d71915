"""The requirements.txt of a job: found, installed, told."""
