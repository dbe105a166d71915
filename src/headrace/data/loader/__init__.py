"""The loader: ShardDataset and DataLoader. See README.md beside this file for its life cycle."""
