"""The loader: ShardDataset and DataLoader. See README.md in this folder for its life cycle."""
