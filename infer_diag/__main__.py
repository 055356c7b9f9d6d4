"""`python -m infer_diag` is `infer-diag`."""

from infer_diag.cli import main

if __name__ == "__main__":
    main()
