"""What is remembered. Nothing here depends on agents or processes.

packing       a transition, or several, packed into one column
nstep         n-step windows over environments stepped together
blocks        unrolls: T steps of K environments as one item
block_adder   writes them
adders        turn steps into items of a table, in bursts
writer        writes items, with a bound on unconfirmed ones
stderr        drops Reverb's log lines of each burst
tables        Reverb tables with their numbers checked
deadlock      rate limiters: can both sides block each other forever?
table_checks  the state of a server's tables, and what it means
readers       batches of one table, read by a thread
shards        how the batches of several shards are mixed
sampler       samples for the learner, mixed from all shards
ring          replay in the process that learns, for repeatable runs
priorities    checked, repaired, and written back to their shard
tensors       works around a leak of TensorFlow's on Python 3.11
export        `python -m replay.export`: replay as a data set
episodes      reconstructs the episodes in replay
minari        writes them in Minari's format
isolation     a private network, because Reverb has no password
checkpoints/  save and restore a server
inspect/      `python -m replay.inspect`
"""
