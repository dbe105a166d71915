"""What runs cost: dated prices of instance types, and the money that a run spent on what."""
