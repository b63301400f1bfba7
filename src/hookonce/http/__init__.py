"""HTTP in, status out."""
