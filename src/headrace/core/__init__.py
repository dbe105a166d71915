"""What all packages build on: errors, environment variables, units, world, processes."""
