"""Jobs and experiments with the names of Vertex AI's SDK, importable as `headrace.vertex`."""
