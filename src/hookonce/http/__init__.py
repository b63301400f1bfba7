"""The ASGI application of a receiver, its routes and its health checks."""
