"""Files written by each release, and tests that the present version opens them."""
