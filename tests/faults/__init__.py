"""Faults in real processes and servers: what was acknowledged is handled, and nothing twice."""
