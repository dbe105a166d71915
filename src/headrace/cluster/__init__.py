"""The hosts of a job on a Ray cluster, by instance group, and the agent that runs on each."""
