"""CUDA graphs: what capturing costs, what replaying saves, and which calls a capture refuses."""
