"""The live page: runs that go on, in a browser."""
