"""The dashboard at `/dashboard`: a page without outside assets, and the figures it asks for as JSON.

    routes.py    which path does what, and what every answer carries
    access.py    who may see it, and whose figures
    answers.py   the views: the records' figures with what only the running process knows beside them
    source.py    the records' file, read by a thread of its own
    whatif.py    recorded turns under other policies, in a process of its own
    static/      the page

docs/dashboard.md is for who uses it.
"""
