"""Router, handlers, key functions and context: which handler gets which event."""
