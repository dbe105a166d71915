"""The report of a run: a self-contained HTML page of sections, charts and the terminal view."""
