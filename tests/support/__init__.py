"""What tests share: real servers and processes, faulty stores, and waiting with a deadline."""
