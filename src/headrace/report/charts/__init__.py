"""Charts as data: what of a run's records a chart shows, in which columns, bars or boxes."""
