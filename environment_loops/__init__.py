"""Where experience comes from.

environments    one gymnasium environment as dm_env; what an agent must know
building        gymnasium environments by name, with refusals that help
vector          K environments stepped together, by name
stepping        what all of these have in common: ends, faults, next episodes
copies          any gymnasium environment, K of them in a Python loop
classic_batch   classic control as arrays
mujoco_batch    K MuJoCo simulations; mujoco_tasks says what they show and pay
atari_batch     ale_py's own vector environment; atari has the preprocessing
actions         from the actions of agents to those of environments
faults          what an environment can do wrong, and how it is said
observers       adds up episodes as they go by
evaluation      episodes played to measure a policy
side_view       draws MuJoCo without OpenGL
"""
