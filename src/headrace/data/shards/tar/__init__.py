"""Tar files: headers, a writer that streams, a reader that names every fault."""
