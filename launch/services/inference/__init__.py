"""Central inference: actors whose policy runs on a server (SEED).

frames     what a request and its reply look like in memory
batching   which requests go into one forward pass, and when
transport  frames on their way: shared memory on one host, RPC between hosts
policy     what a server acts with, where parameters may be unsound
sessions   the server's side: whose state belongs to whom, what was answered
server     the node that takes requests in, acts and answers
figures    what it reports: batches, requests, waits
remote     the actor's side: a policy and parameters that are elsewhere
waiting    what an actor says while it waits for the server
"""
