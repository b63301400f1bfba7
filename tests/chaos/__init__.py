"""Simulations of the examples with each store; handlers run inside the request or in workers."""
