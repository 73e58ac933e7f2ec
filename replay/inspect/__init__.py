"""`murmuration inspect` inspects replay, running or saved.

command  the command line
target   from the command line to servers and checkpoints
read     the state of servers and checkpoints
items    a look at some items
report   all of it together, also as JSON
words    what the numbers mean
draw     tables and bars in the terminal
"""
