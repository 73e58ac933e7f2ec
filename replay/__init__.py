"""What is remembered. Nothing here depends on agents or processes.

packing       a transition, or several, packed into one column
nstep         n-step windows over environments stepped together
blocks        unrolls: T steps of K environments as one item
adders        turn steps into items of a table
writer        writes items, with a bound on unconfirmed ones
stderr        drops Reverb's log lines of each burst
tables        Reverb tables with their numbers checked
deadlock      rate limiters: can both sides block each other forever?
table_checks  the state of a server's tables, and what it means
readers       batches of one table, read by a thread
sampler       samples for the learner, mixed from all shards
ring          replay in the process that learns, for repeatable runs
priorities    checked, repaired, and written back to their shard
tensors       works around a leak of TensorFlow's on Python 3.11
export        `murmuration dataset`: replay as a data set
episodes      reconstructs the episodes in replay
minari        writes them in Minari's format
isolation     a private network, because Reverb has no password
checkpoints   save and restore a server
inspect/      `murmuration inspect`
"""

import os

# Reverb's gRPC would ask a proxy of the shell for this host's servers too.
# Here, as every process that talks to Reverb has imported this by then.
_HERE = 'localhost,127.0.0.1'
_direct = os.environ.get('no_grpc_proxy') or os.environ.get('no_proxy') or ''
if not _direct.endswith(_HERE):
  os.environ['no_grpc_proxy'] = f'{_direct},{_HERE}'.lstrip(',')

if __name__ == 'replay':
  raise ImportError('import it as murmuration.replay')
