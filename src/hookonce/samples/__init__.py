"""Realistic sample events, for tests, the emulator and the command line."""
