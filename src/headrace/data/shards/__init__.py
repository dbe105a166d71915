"""Datasets as shards: tar files that WebDataset reads too, one index and one manifest.

Nothing is imported here, so that a worker that only locates samples loads no packing code.

    pack.pack            a folder tree, pairs or a table of URLs -> shards, index, manifest
    in_place.index       existing tars or loose objects -> index and manifest, nothing copied
    index.open_index     sample number -> byte ranges and checksums
    lint.lint            every checksum of every member
"""
