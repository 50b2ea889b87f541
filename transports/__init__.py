"""Bytes. Carry frames and bulk buffers between the coordinator and its ranks."""
