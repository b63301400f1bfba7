"""Files of each release, and the proof that the present version opens them."""
