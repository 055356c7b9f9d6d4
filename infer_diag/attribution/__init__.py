"""Frames in, frames out: where the time and the memory of a recording went. No charts, no files, no clock."""
