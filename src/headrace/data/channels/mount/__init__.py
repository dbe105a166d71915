"""Mounts of object storage as folders, by a FUSE program that is found on this host."""
