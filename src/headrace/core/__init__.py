"""The base of all packages: errors, environment variables, units, world, processes."""
