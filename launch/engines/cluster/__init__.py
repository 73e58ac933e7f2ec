"""ray: the nodes of a program on the hosts of a Ray cluster.

  options     which Ray, and what nodes ask for; without Ray itself
  engine      joins Ray and runs a program there
  backend     nodes' places and hosts' agents, as the supervisor sees them
  host        the agent of a host: its fork server, addresses, signs of life
  addresses   where the servers of a host are, and the way to those of others
  tunnel      carries Reverb from host to host
  forkserver  the process that a host's nodes are forked from

Ray says where a node runs: a small actor holds its resources. The node itself
is a process of its own, forked by the agent's fork server as in local_mp.
"""
