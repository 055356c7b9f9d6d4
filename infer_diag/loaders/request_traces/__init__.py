"""Requests as clients, benchmarks and tracing systems recorded them.

`delimited` and `jsonl` cut files into cells, `moments` puts a clock's readings into the columns of `Requests`; the
other modules are the formats, and `registry` lists them.
"""
