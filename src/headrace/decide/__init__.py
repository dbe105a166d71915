"""What a run tells about the next one: experiments and their comparison, and what samples cost."""
