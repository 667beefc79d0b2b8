"""Offline tools for store directories, ours or Java's: check, repair, dump.

Files are mapped read-only; only `repair` changes anything. Nothing here prints, or knows the command line.
"""
