"""The sections of the page.

A section is a pure function of the page's data. To add one, write its function here and list it in
`page.py`.
"""
