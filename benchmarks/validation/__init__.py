"""Whether the cost analysis finds what was planted, and nothing else: hundreds of fleets whose truth is known.

    PYTHONPATH=benchmarks python -m validation [--fleets 1.0] [--seed 20261129] [--out FILE]     (make validate)

`counted` makes fleets as tables of windows, quickly; `logged` runs engines step by step, writes what they would print,
and reads that text back with the loaders. In both the truth is the generator's own cost with causes switched off; the
analysis is told neither the step curve nor the demand. `trials` analyses one fleet, `summary` counts over them.
"""
