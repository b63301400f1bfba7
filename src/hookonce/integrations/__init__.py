"""Adapters for frameworks and servers; each adapter imports only its own framework.

Each adapter has a function ``mount``, which adds a receiver to an application. Starlette needs no
adapter: ``Receiver.routes`` are routes of Starlette.

Every adapter passes the original bytes of a body to ``Receiver.handle`` before anything parses
them, and sends every outcome unchanged: a 2xx means handled, durably stored or deliberately
ignored, and there is never a 3xx or a 410.
"""
