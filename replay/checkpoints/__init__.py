"""Replay on disk: files, save, restore."""
