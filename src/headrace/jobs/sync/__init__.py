"""Files of a job mirrored to URLs: checkpoints while it runs, outputs at its end."""
