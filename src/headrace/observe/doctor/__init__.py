"""The doctor: from records to findings, causes, remedies and one sentence."""
