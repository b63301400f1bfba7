"""Simulations of the examples with each store, in both modes."""
