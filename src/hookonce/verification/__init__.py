"""Whether a delivery is genuine: pure functions over bytes, without I/O."""
