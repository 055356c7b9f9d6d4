"""Five layouts of a KV cache read by kernels: packed by numpy, checked to the last bit, timed where a GPU is."""
