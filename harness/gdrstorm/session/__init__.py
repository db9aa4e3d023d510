"""The composer: runs a scenario on a stack and writes its journal.

choose (which stack), run (one run on this machine), supervisor and worker (processes), watch (kernel log and other
witnesses), guard (cleans up when the supervisor dies), vm (the same run inside the VM bed).
"""
