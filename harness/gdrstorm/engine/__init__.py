"""The only importer of the native module: runs storms without the GIL and reads their statistics from shared memory.

A supervisor creates an `Area` (a memfd) and hands its descriptor to worker processes. Each worker runs `run_storm`
over its range of thread slots. The supervisor reads the same area at any time, also when a worker hangs or is dead.
"""

from gdrstorm.engine.area import Area, AreaSnapshot, ThreadState
from gdrstorm.engine.program import ExporterBinding, ImporterBinding, StormProgram
from gdrstorm.engine.storm import Step, has_exporter, has_importer, run_storm, sequence

__all__ = [
    "Area",
    "AreaSnapshot",
    "ExporterBinding",
    "ImporterBinding",
    "Step",
    "StormProgram",
    "ThreadState",
    "has_exporter",
    "has_importer",
    "run_storm",
    "sequence",
]
