"""Clients of remote stores: requests in this process, or in a subprocess."""
