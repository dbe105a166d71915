"""The sections of the page.

A section is a pure function of what is known of a run. To add one, write its function here and name
it in `page.py`.
"""
