"""Sources that can be packed or indexed: class folders, image-mask pairs, tables of URLs."""
