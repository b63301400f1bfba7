"""What things cost, as ratios within one run on one machine; no test asserts a time."""
