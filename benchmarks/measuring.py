"""The process in which a benchmark measures one way: CPU seconds after the imports, and peak memory with them."""

MEASURED = """
import json, resource, sys, time
{imports}
path = sys.argv[1]
began = time.process_time()
{code}
spent = time.process_time() - began
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([spent, peak_mib, found]))
"""
