"""Ground floor: errors, environment variables, units, world, process lifetime."""
