"""What is remembered: Reverb tables, what is written to and read from them.

`packing` puts a transition in one float32 column; `nstep` builds the windows;
`adders` write them; `tables` and `limiters` say how they are kept; `datasets`
read them back in batches. Nothing here knows of agents or processes.
"""
