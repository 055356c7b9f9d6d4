"""Quantised weights: packing and unpacking as the formats define it, what they weigh, and kernels that unpack them."""
