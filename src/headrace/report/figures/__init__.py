"""The charts of a run: from recorded tables to Plotly figures."""
