"""Turn records: what each turn cost, kept in the ledger's file, and what is asked of them.

record.py    the record
prices.py    what tokens cost
recorder.py, made.py   makes a record when a turn ends, and hands it on
writer.py    records on their way into the file
store.py, batch.py, sums.py, schema.py, rows.py, buckets.py   the tables, and writing them
queries.py, latency.py, figures.py, facts.py, reader.py   the questions, and where the answers stand
"""
