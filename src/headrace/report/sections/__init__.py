"""The sections of the page, one a file, in the order in which they are read.

A section is a pure function of what is known of a run. To add one, write its file and name it in
`page.py`.
"""
