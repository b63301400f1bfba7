"""The path of a delivery, from bytes to an outcome."""
