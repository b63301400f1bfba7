"""Adapters for frameworks and servers; each imports its framework, and none imports another's.

Starlette needs none: ``Receiver.routes`` are its own. Every adapter hands the bytes of the body to
``Receiver.handle`` as they came, before anything parses them, and keeps every outcome: a 2xx means
handled, durably kept or deliberately ignored, and there is never a 3xx and never a 410.
"""
