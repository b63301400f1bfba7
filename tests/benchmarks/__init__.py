"""Benchmarks. Results are ratios within a run, because times depend on the machine.

No test asserts a time.
"""
