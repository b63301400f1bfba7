"""Faults in real processes and servers: each acknowledged event is handled, and only once."""
