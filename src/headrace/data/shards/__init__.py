"""Datasets as shards: tar files that WebDataset reads too, one index and one manifest.

A dataset is a folder, local or remote, written in this order:

    000000.tar ...   key.jpg, key.cls side by side; complete once it exists
    index.arrow      one record batch a shard: key, and place and checksum of every member
    manifest.json    fingerprint, shards, classes, files left out; makes the dataset exist

Existing tars or loose objects get an index and a manifest, and stay unchanged.

    pack, in_place_index   make a dataset from the samples that `sources` list; shard_packer,
                        shard_records and task_pool are their parts
    shard_index            sample number -> byte ranges and checksums; index_rows, index_batches
                        and index_writer read and write the stored index
    lint                   every checksum of every member, compared with the index
    tar                    headers, a streaming writer, a reader that names every fault

Nothing is imported here, so that a worker that only locates samples loads no packing code.
"""
