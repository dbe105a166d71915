"""Processes that Headrace starts: how they end with their parent, and what they see and leave."""
