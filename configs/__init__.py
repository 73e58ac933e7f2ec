"""The agents of the project, one to a file: classes, default topology, presets.

A file here holds one `AGENT = registry.Agent(...)`, and its name is the agent's
on the command line. The first preset is the default one.
"""
