"""Heaps of device memory: their state at any event, how broken up they are, and whether that hurts."""
