"""The channels of a job: what flags say of them, and what brings them to a host."""
