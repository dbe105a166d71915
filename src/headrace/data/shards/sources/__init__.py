"""What can be packed or indexed: class folders, pairs, tables of URLs; each gives one table."""
