"""The guest's side of a run in the VM bed: a request on standard input, the journal out through a virtio port.

Runs the same code as a run on any host. `python -m gdrstorm.session.guest` is started by session.vm, never by hand.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from gdrstorm.model.scenario import Scenario
from gdrstorm.session.options import RunOptions, Where

_PORT = Path("/dev/virtio-ports/gdrstorm.journal")


class Request(msgspec.Struct, frozen=True):
    """What the host wants run."""

    run_id: str
    scenario: Scenario
    options: RunOptions


def encode_request(request: Request) -> bytes:
    return msgspec.json.encode(request)


def main() -> int:
    from gdrstorm.session.run import run_here

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    options = msgspec.structs.replace(request.options, where=Where.HOST)
    run_dir = Path("/tmp/gdrstorm") / request.run_id
    run_dir.mkdir(parents=True)
    port = os.open(_PORT, os.O_WRONLY | os.O_CLOEXEC)
    try:
        verdict = run_here(request.scenario, options, run_dir, stream_fd=port)
    finally:
        os.close(port)
    return verdict.word.exit_code


if __name__ == "__main__":
    sys.exit(main())
