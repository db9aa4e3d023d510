"""The device model's process: virtual ConnectX functions on vfio-user sockets, and their control.

    python -m gdrstorm.bed.connectx.server --socket A.sock [--socket B.sock] --control CTL.sock

All functions share one fabric, one saboteur and one oracle. A line ``ready`` goes to stdout when
all sockets listen. The process ends with SIGTERM, with the control request ``quit``, or when its
parent dies, and removes its sockets.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdrstorm.bed.connectx.control import Controller, ControlServer
from gdrstorm.bed.connectx.device import ConnectX
from gdrstorm.bed.connectx.fabric import Fabric
from gdrstorm.bed.connectx.options import ConnectXOptions, LinkLayer
from gdrstorm.bed.connectx.oracle import Oracle
from gdrstorm.bed.connectx.plant import Saboteur
from gdrstorm.bed.vfio_user.loop import EventLoop
from gdrstorm.bed.vfio_user.server import VfioUserServer
from gdrstorm.errors import BrokenError, GdrstormError, errno_name

_PR_SET_PDEATHSIG: Final = 1  # include/uapi/linux/prctl.h
_EXIT_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The command line, typed."""

    sockets: tuple[Path, ...]
    control: Path
    link_layer: LinkLayer
    trace: bool
    verbose: bool


def parse_arguments(argv: Sequence[str]) -> ServerOptions:
    """Wrong use ends the process with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="gdrstorm.bed.connectx.server", description=__doc__)
    parser.add_argument(
        "--socket",
        type=Path,
        action="append",
        required=True,
        help="vfio-user socket; one a function",
    )
    parser.add_argument("--control", type=Path, required=True, help="control socket")
    parser.add_argument(
        "--link-layer", choices=[layer.value for layer in LinkLayer], default="ethernet"
    )
    parser.add_argument("--trace", action="store_true", help="trace from the start")
    parser.add_argument("--verbose", action="store_true", help="log every refused message")
    found = parser.parse_args(argv)
    return ServerOptions(
        sockets=tuple(found.socket),
        control=found.control,
        link_layer=LinkLayer(found.link_layer),
        trace=found.trace,
        verbose=found.verbose,
    )


def die_with_parent() -> None:
    """Get SIGTERM when the thread that started this process ends; also when it already has."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise BrokenError(f"prctl(PR_SET_PDEATHSIG): {errno_name(ctypes.get_errno())}")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def stop_on_signals(loop: EventLoop) -> None:
    """End the loop on SIGTERM and SIGINT; a model that is stuck in a callback ends by SIGALRM."""

    def stop(_number: int, _frame: object) -> None:
        signal.alarm(_EXIT_SECONDS)
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.set_wakeup_fd(loop.wake_fd, warn_on_full_buffer=False)


def serve(options: ServerOptions, loop: EventLoop) -> None:
    """Open everything, run until stopped, close everything."""
    saboteur, oracle, fabric = Saboteur(), Oracle(trace=options.trace), Fabric()
    with contextlib.ExitStack() as stack:
        server = VfioUserServer(loop)
        stack.callback(server.close)
        for index, path in enumerate(options.sockets):
            settings = ConnectXOptions(link_layer=options.link_layer, index=index)
            server.add_device(path, ConnectX(settings, fabric, oracle, saboteur))
        controller = Controller(server, saboteur, oracle)
        control = ControlServer(options.control, loop, controller)
        stack.callback(control.close)
        print("ready", flush=True)
        # What exists now lives as long as the process: later collections need not look at it.
        gc.collect()
        gc.freeze()
        loop.run()


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(sys.argv[1:] if argv is None else argv)
    level = logging.INFO if options.verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    loop = EventLoop()
    stop_on_signals(loop)
    try:
        die_with_parent()
        serve(options, loop)
    except GdrstormError as error:
        print(f"connectx: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        signal.set_wakeup_fd(-1)
        loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
