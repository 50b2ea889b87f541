"""Decisions. Pure: no socket, file, clock, thread, random source, torch or trio in here."""
