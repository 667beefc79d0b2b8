"""Looking at a store directory that no broker of ours has open: check, repair, dump.

Works on directories of the Java broker too. Reads through mappings that cannot write; only `repair` changes anything.
Must never print, nor know of the command line.
"""
