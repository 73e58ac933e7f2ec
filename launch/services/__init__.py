"""Objects that are served over RPC: one plain class, one module each.

A service knows nothing of how it is reached: it can be made and called in a
test without a program. `launch.rpc.Node` answers the calls of those
methods that a class lists in `serves`.
"""
