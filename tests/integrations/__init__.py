"""Every adapter passes one suite, served by the servers it is served by in life."""
