"""Large stores from a seed, and what reading them through a mount costs: `python -m bench`.

text, rollout      the words and the lines of a log
thread, longline   whole logs: a long life with checkpoints, and logs with one enormous line
stores             the stores that are measured, by name
server, watch      a mount in a process of its own; what its processes keep in memory and read of a log
timing             runs of a command beside its reference
walks, peers       everyday commands; what others need for the same
cases, report      what is measured, and the page that is written from it
"""
