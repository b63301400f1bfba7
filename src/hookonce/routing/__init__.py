"""The way of a delivery, from bytes to an outcome."""
