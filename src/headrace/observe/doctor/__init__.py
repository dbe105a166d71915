"""From records to findings, causes, remedies and one sentence."""
