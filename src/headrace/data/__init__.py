"""How samples reach the model: storage, shards, transforms, loader, channels."""
