"""What a process pays before its first kernel: driver, device, context, module, libraries."""
