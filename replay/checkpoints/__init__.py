"""Checkpoints of replay servers.

files    generations, manifests and records on disk
save     starts a server from the newest checkpoint, and writes one
restore  copies a checkpoint with the settings of the code
"""
