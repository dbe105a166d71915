"""One page about a run: self-contained HTML made of parts, and its charts for notebooks."""
