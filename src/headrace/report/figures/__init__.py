"""The charts of a run: recorded tables in, a Plotly figure out."""
