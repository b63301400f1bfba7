"""What the tests share: real servers and processes, faulty stores, waits with a deadline."""
