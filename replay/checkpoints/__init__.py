"""Checkpoints of replay servers.

files    generations, manifests and records on disk
save     starts a server with the newest checkpoint, and writes one
restore  a copy of a checkpoint with the settings of the code
"""
