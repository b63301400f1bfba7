"""Observers for metrics and traces; each imports its library, and neither imports the other's.

Give one to ``Receiver(observers=[…])``. Labels and attributes come from bounded sets (what the
package names, what the application registered), and hold no body, signature or secret.
"""
