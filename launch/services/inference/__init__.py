"""Central inference: actors whose policy runs on a server (SEED).

frames     the memory layout of a request and its reply
batching   which requests go into one forward pass, and when
transport  sends frames: shared memory on one host, RPC between hosts
sessions   the server's state of each actor
server     the node that receives requests, acts and answers
figures    the server's metrics: batches, requests, waiting times
remote     the actor's client: its policy and parameters are on the server
"""
