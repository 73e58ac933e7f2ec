"""ray: the nodes of a program on the hosts of a Ray cluster.

  engine      starts or joins Ray, and runs a program; the only one to import it
              in the launcher
  resources   what a group's nodes ask for, and what a cluster has
  backend     places nodes, starts them on their hosts, and hears how they end
  actors      what runs in Ray's processes: a seat for each node, the names
  host        the agent of a host: its zygote, its addresses, its nodes' signs
  addresses   where the servers of a host are, and the way to those of others
  tunnel      carries Reverb from host to host
  forkserver  the process that a host's nodes are forked from

A node is a process of its own, forked from one that imported the stack, as with
local_mp; its Ray actor (a "seat") holds the resources that the node uses, and
so says where the node runs.
"""
