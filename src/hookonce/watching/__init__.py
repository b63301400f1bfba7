"""Records for observers, the delivery log, and warnings for operators."""
