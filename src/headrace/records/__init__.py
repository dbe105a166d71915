"""What a run folder holds: schema, rings, collector, store, Parquet tables, readers."""
