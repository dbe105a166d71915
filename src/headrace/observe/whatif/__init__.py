"""What a change to the input pipeline would give: measured batches, simulated again. No torch."""
