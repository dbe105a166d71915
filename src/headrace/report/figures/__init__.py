"""The charts of a run, one a file: recorded tables in, a Plotly figure out."""
