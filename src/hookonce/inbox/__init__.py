"""Deliveries that are stored first, and handled by workers."""
