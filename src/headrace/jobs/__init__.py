"""Jobs: their description, their start, their supervision and their end."""
