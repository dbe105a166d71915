"""Datasets as shards: tar files that WebDataset reads too, one index and one manifest.

A dataset is a folder, local or remote, written in this order:

    000000.tar ...   key.jpg, key.cls side by side; whole as soon as it is there
    index.arrow      one record batch a shard: key, and place and checksum of every member
    manifest.json    fingerprint, shards, classes, what was left out; makes the dataset exist

Tars or loose objects that are there already get an index and a manifest, and stay as they are.

    pack, in_place   make a dataset; `packing` is what they are made of, `sources` what they read
    index            sample number -> byte ranges and checksums; `rows` is how the index is kept
    lint             every checksum of every member; `linting` compares it with what lies there
    tar              headers, a writer that streams, a reader that names every fault

Nothing is imported here, so that a worker that only locates samples loads no packing code.
"""
