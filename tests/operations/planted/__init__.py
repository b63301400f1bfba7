"""Plants one fault at a time in a deployment, and counts an operator's steps to its cause."""
