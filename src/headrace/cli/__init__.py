"""The command line: one verb a file, which parses, calls and prints."""
