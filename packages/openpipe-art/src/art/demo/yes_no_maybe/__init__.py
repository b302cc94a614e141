"""The program that `art demo` runs; `examples/yes_no_maybe/train.py` is the same file."""
