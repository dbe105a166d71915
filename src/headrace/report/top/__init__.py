"""The terminal view of a run (`headrace top`): numbers from records, a frame of them, the loop."""
