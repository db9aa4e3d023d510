"""Runs inside the guest: one small act on the RDMA device, told as JSON lines.

    python3 guest_plant.py ACT [NUMBER]

Each line is {"act", "status", "ms"}; the status is "ok", an errno name, or what the completion said.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from gdrstorm.errors import CallError, errno_name
from gdrstorm.stack.exporter.dmaheap import DmaHeapExporter
from gdrstorm.stack.exporter.vfio import VfioExporter, enable_memory
from gdrstorm.stack.loopback import Loopback, TransferError

SIZE = 1 << 16
HCA = "mlx5_0"
PATTERN = bytes(range(256))[:64]


def tell(act: str, status: str, began: float, **more: object) -> None:
    line = {"act": act, "status": status, "ms": (time.monotonic() - began) * 1e3, **more}
    print(json.dumps(line), flush=True)


@contextmanager
def telling(act: str) -> Iterator[None]:
    """Tell how the block ended; its error ends the script."""
    began = time.monotonic()
    try:
        yield
    except CallError as error:
        tell(act, errno_name(error.errno), began)
        sys.exit(0)
    except TransferError as error:
        tell(act, str(error), began)
        sys.exit(0)
    tell(act, "ok", began)


def register(count: int) -> None:
    """Register and deregister a dma-buf, one line each."""
    from pyverbs.device import Context
    from pyverbs.mr import DmaBufMR
    from pyverbs.pd import PD
    from pyverbs.pyverbs_error import PyverbsRDMAError

    with ExitStack() as stack:
        exporter = stack.enter_context(DmaHeapExporter.open())
        memory = stack.enter_context(closing(exporter.alloc(SIZE)))
        buffer = stack.enter_context(closing(exporter.export(memory, 0, SIZE)))
        context = stack.enter_context(closing(Context(name=HCA)))
        domain = stack.enter_context(closing(PD(context)))
        for _ in range(count):
            began = time.monotonic()
            try:
                mr = DmaBufMR(domain, SIZE, 7, dmabuf=buffer.fd, offset=0)
            except PyverbsRDMAError as error:
                tell("reg", errno_name(error.error_code), began)
                continue
            tell("reg", "ok", began)
            began = time.monotonic()
            mr.close()
            tell("dereg", "ok", began)


def protection_domain(_count: int) -> None:
    """Allocate a PD: one firmware command."""
    from pyverbs.device import Context
    from pyverbs.pd import PD
    from pyverbs.pyverbs_error import PyverbsRDMAError

    with closing(Context(name=HCA)) as context:
        began = time.monotonic()
        try:
            PD(context).close()
            tell("pd", "ok", began)
        except PyverbsRDMAError as error:
            tell("pd", errno_name(error.error_code), began)


def write(count: int) -> None:
    """RDMA WRITE into a dma-buf and compare."""
    with ExitStack() as stack:
        exporter = stack.enter_context(DmaHeapExporter.open())
        memory = stack.enter_context(closing(exporter.alloc(SIZE)))
        buffer = stack.enter_context(closing(exporter.export(memory, 0, SIZE)))
        view: Any = stack.enter_context(closing(memory.map()))
        loopback = stack.enter_context(closing(Loopback.open(HCA, 4096)))
        rkey = loopback.register(buffer.fd, 0, SIZE)
        for _ in range(count):
            with telling("write"):
                loopback.write(PATTERN, 0, rkey)
            tell("data", "ok" if view[:64] == PATTERN else "differs", time.monotonic())


def bar(act: Callable[[VfioExporter, Loopback, int, Any], None]) -> None:
    with ExitStack() as stack:
        exporter = stack.enter_context(VfioExporter.open())
        memory = stack.enter_context(closing(exporter.alloc(SIZE)))
        buffer = stack.enter_context(closing(exporter.export(memory, 0, SIZE)))
        loopback = stack.enter_context(closing(Loopback.open(HCA, 4096)))
        rkey = loopback.register(buffer.fd, 0, SIZE)
        act(exporter, loopback, rkey, memory)


def bar_fault(_count: int) -> None:
    """RDMA WRITE into a BAR, revoke it, give it back, write again: that raises a page fault."""

    def act(exporter: VfioExporter, loopback: Loopback, rkey: int, memory: Any) -> None:
        with telling("write"):
            loopback.write(bytes(64), 0, rkey)
        enable_memory(exporter.device_fd, enable=False)
        enable_memory(exporter.device_fd)
        with telling("fault"):
            loopback.write(PATTERN, 0, rkey)
        with closing(memory.map()) as view:
            tell("data", "ok" if view[:64] == PATTERN else "differs", time.monotonic())

    bar(act)


def bar_revoke(seconds: int) -> None:
    """Write zeroes, then leave the BAR revoked for a while."""

    def act(exporter: VfioExporter, loopback: Loopback, rkey: int, _memory: Any) -> None:
        with telling("write"):
            loopback.write(bytes(64), 0, rkey)
        with telling("revoke"):
            enable_memory(exporter.device_fd, enable=False)
            time.sleep(seconds)
            enable_memory(exporter.device_fd)

    bar(act)


def bar_stale(seconds: int) -> None:
    """Write zeroes, revoke and give back; wait until somebody writes into the BAR."""

    def act(exporter: VfioExporter, loopback: Loopback, rkey: int, memory: Any) -> None:
        with telling("write"):
            loopback.write(bytes(64), 0, rkey)
        enable_memory(exporter.device_fd, enable=False)
        enable_memory(exporter.device_fd)
        began = time.monotonic()
        with closing(memory.map()) as view:
            while not any(view[:64]) and time.monotonic() < began + seconds:
                time.sleep(0.1)
            tell("bar", bytes(view[:64]).hex(), began)

    bar(act)


ACTS: dict[str, Callable[[int], None]] = {
    "register": register,
    "pd": protection_domain,
    "write": write,
    "bar-fault": bar_fault,
    "bar-revoke": bar_revoke,
    "bar-stale": bar_stale,
}

if __name__ == "__main__":
    ACTS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 1)
