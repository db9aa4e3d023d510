"""Runs inside the guest: one gate, data check or revoked transfer, told as JSON on standard output.

python3 guest_stack.py gate TABLE EXPORTER IMPORTER [DEVICE]
python3 guest_stack.py verify EXPORTER IMPORTER
python3 guest_stack.py revoked
"""

from __future__ import annotations

import sys
from contextlib import closing

import msgspec

from gdrstorm.errors import CallError
from gdrstorm.stack import registry, tables
from gdrstorm.stack.exporter.vfio import VfioExporter, enable_memory
from gdrstorm.stack.loopback import Loopback, TransferError

SIZE = 1 << 16
HCA = "mlx5_0"


def gate(table: str, exporter: str, importer: str, device: str | None = None) -> object:
    with (
        registry.open_exporter(exporter) as source,
        registry.open_importer(importer, device) as sink,
    ):
        return tables.run_gate(table, source, sink)


def verify(exporter: str, importer: str) -> object:
    with registry.open_exporter(exporter) as source, registry.open_importer(importer) as sink:
        return {
            "check": tables.verify_data(source, sink),
            "exporter": source.describe(),
            "importer": sink.describe(),
        }


def revoked() -> object:
    """A BAR whose memory is turned off: transfer, export and registration in that state, and after it."""
    said = {}
    with VfioExporter.open() as exporter, closing(exporter.alloc(SIZE)) as memory:
        with (
            closing(exporter.export(memory, 0, SIZE)) as buffer,
            closing(Loopback.open(HCA, SIZE)) as loopback,
        ):
            rkey = loopback.register(buffer.fd, 0, SIZE)
            said["before"] = _try(lambda: loopback.write(b"x" * 64, 0, rkey))
            enable_memory(exporter.device_fd, False)
            said["transfer"] = _try(lambda: loopback.write(b"x" * 64, 0, rkey))
            said["register"] = _try(lambda: loopback.register(buffer.fd, 0, SIZE))
            enable_memory(exporter.device_fd, True)
        said["after"] = _try(lambda: exporter.export(memory, 0, SIZE).close())
    return said


def _try(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except (CallError, TransferError) as error:
        return error.message
    return "ok"


if __name__ == "__main__":
    acts = {"gate": gate, "verify": verify, "revoked": revoked}
    result = acts[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
    print(msgspec.json.encode(result).decode())
