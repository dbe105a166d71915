"""How a job starts, survives and ends."""
