"""The report over recorded turns: what it says, as tables for the terminal, as JSON and as one HTML file.

base.py     the report as a value, made by asking the records
compare.py  the difference between policies, with an interval
tables.py   for the terminal
page.py, charts.py   one HTML file with its plots
"""
