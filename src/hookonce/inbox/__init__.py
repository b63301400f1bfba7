"""The inbox: stores deliveries first, and lets workers handle them."""
