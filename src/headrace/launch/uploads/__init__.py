"""What a job keeps elsewhere: its checkpoints while it runs, and at the end what it has made."""
