"""The inspector, over a real server and in a real browser."""
