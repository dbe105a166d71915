"""A sweep: one job in many configurations, as one experiment."""
