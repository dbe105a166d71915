"""Ray: the hosts of a job by instance group, and what runs on each of them."""
