"""The doctor: from records to findings, causes, remedies and a one-sentence verdict."""
