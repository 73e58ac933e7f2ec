"""How parameters move besides the gradient: what a topology plugs in.

base          the contract
local         the gradient alone
average       the mean of several learners' gradients
pull          the gradient and a pull towards theta_star
remote_apply  a server applies the gradient, and theta comes back
"""
