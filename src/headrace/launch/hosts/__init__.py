"""A job on several hosts: who drives it, and what each host runs."""
