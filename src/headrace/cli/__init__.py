"""The command line: a file per verb, which parses, calls and prints."""
