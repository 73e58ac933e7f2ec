"""Services: plain classes whose methods other nodes call over RPC.

A service does not know how it is called, so a test can use it without a
program. `launch.rpc.Node` serves the methods that a class lists in `serves`.
"""
