"""Text logs as they come: bytes to records, shared by every loader of text.

`lines` picks the lines that matter out of a chunk, `records` cleans and splits them, `prefixes` peels what collectors,
process managers and engines put in front, `stamps` and `clock` read their times.
"""
