"""ray: the nodes of a program on the hosts of a Ray cluster.

  engine      runs a program on Ray
  reach       where a cluster is, and whether it answers
  join        joins that cluster, or starts a Ray of the run's own
  resources   what a group's nodes ask for, and what a cluster has
  backend     starts nodes on their hosts, and hears how they end
  store       watches Ray's control store, without which Ray itself ends
  seats       asks for the nodes' places, and knows hosts that can run none
  actors      what runs in Ray's processes: a seat for each node, the names
  host        the agent of a host: its zygote, its addresses, its nodes' signs
  addresses   where the servers of a host are, and the way to those of others
  tunnel      carries Reverb from host to host
  forkserver  the process that a host's nodes are forked from

A node is a process of its own, forked from one that imported the stack, as with
local_mp; its Ray actor (a "seat") holds the resources that the node uses, and
so says where the node runs.
"""
