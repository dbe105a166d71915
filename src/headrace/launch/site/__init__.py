"""What a script finds on its host by its contracts, or by the job around it."""
