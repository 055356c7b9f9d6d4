"""Probes of a live GPU and operating system that fill the same frames as a log: measured where a machine allows it."""
