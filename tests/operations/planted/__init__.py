"""The faults of a deployment, planted one at a time, and the operator's steps to their causes."""
