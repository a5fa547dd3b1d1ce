"""Fuzzing: public calls with wild arguments in forked children, and the compiled loops against the reference.

Even cases call lowprec, odd ones ipu_core, whose errors must be raised by a `raise` of ours (see `judgement`).

`python -m tests.fuzz --seconds 3600` runs for an hour, from another seed each day if told `--seed`; the suite runs a
fixed number of cases. A case is a number: the same number is the same call on every machine.
"""
