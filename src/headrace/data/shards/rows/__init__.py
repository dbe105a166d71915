"""The rows of an index: columns, the file, and how it is read, mapped or by range."""
