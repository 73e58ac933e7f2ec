"""`murmuration inspect` looks into replay, live or saved.

command  the command line
target   which servers or checkpoints it means
read     the tables there, their rates, and some of their items
show     what the numbers mean, in the terminal and as JSON
"""
