"""One suite for every adapter, each behind a server that is used in production."""
