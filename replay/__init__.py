"""What is remembered. Nothing here knows of agents or processes.

packing       a transition, or several, as the bytes of one column
nstep         n-step windows over environments stepped together
blocks        unrolls: T steps of K environments as one item
block_adder   writes them
adders        steps become items of a table, in bursts
writer        writes items: bounded in flight, and through restarts
stderr        drops what Reverb says of each burst
tables        Reverb tables with their numbers checked
deadlock      rate limiters: who waits for whom, and whether all could for ever
table_checks  what a server says of a table, and what that means
readers       batches of one table, by a thread
shards        how the batches of several shards mix
sampler       samples for the learner, mixed from all shards
ring          replay in the process that learns, for runs that repeat
priorities    checked, repaired, and written back to their shard
tensors       stops a leak of TensorFlow's on Python 3.11
export        `python -m replay.export`: replay as a data set
episodes      finds the episodes in it
minari        writes them as Minari reads them
isolation     a private network, as Reverb has no password
checkpoints/  save and restore a server
inspect/      `python -m replay.inspect`
"""
