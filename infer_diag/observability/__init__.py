"""What stands around an engine: rules for Prometheus, a collector's configuration, eBPF scripts, and what exposes what.

Text and tables alone; nothing here opens a connection.
"""
