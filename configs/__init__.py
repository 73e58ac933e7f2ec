"""The agents of the project: one file each, with its topology and presets.

A file defines `AGENT = registry.Agent(...)`, and its name is the agent's on the
command line. The first preset is the default.
"""

if __name__ == 'configs':
  raise ImportError('import it as murmuration.configs')
