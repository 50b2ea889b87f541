"""Tensors. Snapshot, average, adopt, save; the training session; the command line."""
