"""One page about a run: self-contained HTML made of sections, and its charts for notebooks."""
