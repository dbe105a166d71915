"""A job on several hosts: its driver, and what each host runs."""
