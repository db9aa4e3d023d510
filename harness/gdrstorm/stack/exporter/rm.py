"""Exporter `rm`: video memory of the NVIDIA driver by its own ioctls, without libcuda.

It reaches the kernel's export path past CUDA's capability gate and with inputs that CUDA never
sends. Device option: ordinal or bdf, mapping=, chunks=, layout= (see gpu_device).
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Self

from gdrstorm.engine import ExporterBinding
from gdrstorm.errors import CallError, GdrstormError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor
from gdrstorm.stack.exporter import Memory
from gdrstorm.stack.exporter.gpu_device import (
    GpuDevice,
    Mapping,
    chunk_sizes,
    parse_gpu_device,
    split_range,
)
from gdrstorm.stack.exporter.rm_client import (
    ExportInput,
    ExportPart,
    RmClient,
    RmIo,
    RmMemory,
    RmStatusError,
    SystemIo,
)
from gdrstorm.uapi import nvidia

#: RM rounds every allocation up to this.
GRANULARITY = nvidia.VIDMEM_ALIGNMENT


class RmExporter:
    """One RM client on one GPU. Memory that is still allocated is freed with the client."""

    name = "rm"

    def __init__(self, client: RmClient, device: GpuDevice) -> None:
        self.client = client
        self.device = device
        self.bdf = client.card.bdf
        self.rm_io: RmIo | None = client.io

    @classmethod
    def probe(cls, device: str | None = None, io: RmIo | None = None) -> Support:
        """Driver, node, permission, version and GPU; opens /dev/nvidiactl only and closes it."""
        io = io or SystemIo()
        try:
            RmClient.check(parse_gpu_device(device), io)
        except GdrstormError as error:
            return Support(False, str(error))
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None, io: RmIo | None = None) -> Self:
        parsed = parse_gpu_device(device)
        return cls(RmClient.open(parsed, io), parsed)

    def describe(self) -> StackPart:
        client, card = self.client, self.client.card
        return StackPart(
            name=self.name,
            device=f"/dev/nvidia{card.minor}",
            bdf=card.bdf,
            driver="nvidia",
            version=client.version,
            details={
                "memory": "GPU video memory, RM class 0x40",
                "mapping": self.device.mapping.name.lower(),
                "chunks": str(self.device.chunks),
                "layout": str(client.generation.branches[-1])
                if self.device.layout
                else f"of {client.version}",
                "kernel module": read_module_flavour(),
            },
        )

    def alloc(self, size_bytes: int) -> RmMemory:
        sizes: tuple[int, ...] = (size_bytes,)
        if self.device.chunks > 1:
            sizes = chunk_sizes(size_bytes, self.device.chunks, GRANULARITY)
        return self.client.alloc(size_bytes, sizes)

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> Descriptor:
        return self.export_mapped(memory, offset_bytes, size_bytes, self.device.mapping)

    def export_mapped(
        self, memory: Memory, offset_bytes: int, size_bytes: int, mapping: Mapping
    ) -> Descriptor:
        """Export with another mapping type than the device option's. Raises as export."""
        assert isinstance(memory, RmMemory)
        parts = tuple(
            ExportPart(memory.handles[part.chunk], part.offset, part.size)
            for part in split_range(tuple(memory.chunk_sizes), offset_bytes, size_bytes)
        )
        answer = self.client.export(ExportInput(parts, mapping.value))
        act = (
            f"cannot export: {self.bdf} offset={offset_bytes} size={size_bytes} "
            f"mapping={mapping.name.lower()}"
        )
        if answer.errno:
            raise CallError(act, answer.errno)
        if answer.status:
            raise RmStatusError(act, answer.status)
        if answer.fd < 0:
            raise CallError(f"{act}: status 0 and no descriptor", errno.EBADF)
        return Descriptor(answer.fd, size_bytes)

    def binding(self) -> ExporterBinding:
        """Numbers as native/src/exp_rm.c lists them."""
        client = self.client
        return ExporterBinding(
            backend="rm",
            fds=(client.ctl_fd, client.dev_fd),
            numbers=(
                client.client,
                client.device,
                self.device.mapping.value,
                self.device.chunks,
                ctypes.sizeof(client.generation.export),
                ctypes.sizeof(client.generation.memory),
                client.generation.alloc.status.offset,
            ),
        )

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_module_flavour(path: str = "/proc/driver/nvidia/version") -> str:
    """`open`, `proprietary`, or why it is not known."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        return f"unknown ({path}: {os.strerror(error.errno or 0)})"
    return "open" if "Open Kernel Module" in text else "proprietary"
