"""A run in the terminal, while it goes on: numbers from records, a frame of them, the loop."""
