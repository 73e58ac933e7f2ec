"""Where experience comes from.

environments    one gymnasium environment as dm_env; what an agent must know
building        gymnasium environments by name, with helpful errors
vector          K environments stepped together, by name
stepping        their base classes: ends, faults, next episodes
copies          any gymnasium environment, K of them in a Python loop
classic_batch   classic control as arrays
mujoco_batch    K MuJoCo simulations; mujoco_tasks has observations and rewards
atari_batch     ale_py's own vector environment; atari has the preprocessing
own_vector      a user's own vector environment
spaces          flattens observations and numbers actions
actions         from the actions of agents to those of environments
faults          what an environment can do wrong, and the errors for it
observers       sums up episodes as they pass
episodes        plays given episodes, each from its own seed
evaluation      plays episodes to measure a policy
"""

if __name__ == 'environment_loops':
  raise ImportError('import it as murmuration.environment_loops')
