"""What packing and indexing are made of: cutting, workers, records of finished shards."""
