"""A package in that package."""
