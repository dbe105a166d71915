"""Where the time of a run goes, why, and what would help."""
