"""Tables that NVIDIA's tools print of devices: `dcgmi dmon`, `nvidia-smi dmon` and `pmon`, and `nvidia-smi` as CSV.

`columns` maps headers to rows, `gpu_rows` makes samples of the cells, `monitors` and `query_csv` are the loaders.
"""
