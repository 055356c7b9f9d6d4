"""Models of allocators and schedulers that fill the same frames as a log: simulated, and saying so."""
