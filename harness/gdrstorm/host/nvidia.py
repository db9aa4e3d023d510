"""NVIDIA driver and GPUs from procfs and the PCI tree to records.

Reads /proc/driver/nvidia and module parameters; opens no GPU. What only the driver's own calls can
tell (static BAR1, MIG, coherence) comes from an injected `GpuStateReader` and stays unknown without
one. Option names: kernel-open/nvidia/nv-reg.h of the open modules.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from gdrstorm.host.nvml import NvmlGpu
from gdrstorm.host.sysfs import read_names, read_text, read_value
from gdrstorm.model.inventory import (
    Gpu,
    GpuState,
    NvidiaDriver,
    NvidiaParam,
    PciDevice,
    Probe,
    Unknown,
    Why,
    known,
    unknown,
)

NVIDIA_VENDOR = 0x10DE
_VGA, _3D = 0x0300, 0x0302
_DWORD = re.compile(r"\s*([^=;]+)=([^;]*)")


class GpuStateReader(Protocol):
    """Asks the driver of one GPU for what no file tells."""

    def read_gpu_state(self, bdf: str) -> GpuState:
        """State of the GPU at `bdf`; every field that cannot be had is unknown with its reason.

        Raises nothing for a GPU that is absent or refuses; changes nothing on it.
        """


def unknown_state(why: Why, detail: str) -> GpuState:
    """A GPU state nobody could read."""
    return GpuState(*(unknown(why, detail) for _ in range(5)))


def parse_version(text: str) -> tuple[str, str]:
    """(flavour, version) of /proc/driver/nvidia/version. ValueError when it is none.

    `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  ...` is open,
    `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  ...` is proprietary.
    """
    match = re.search(r"^NVRM version:.*?Module.*?\s{2,}(\d+\.\d+(?:\.\d+)*)", text, re.MULTILINE)
    if not match:
        raise ValueError(text)
    flavour = "open" if "Open Kernel Module" in match[0] else "proprietary"
    return flavour, match[1]


def parse_dwords(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of a RegistryDwords string: `A=1;B=0x11`."""
    return tuple((m[1].strip(), m[2].strip()) for m in _DWORD.finditer(text.strip('"')))


def parse_params(text: str, source: str) -> tuple[NvidiaParam, ...]:
    """Lines of /proc/driver/nvidia/params; each pair in RegistryDwords counts as a setting too."""
    found = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            continue
        name, value = name.strip(), value.strip().strip('"')
        found.append(NvidiaParam(name, value, source))
        if name in {"RegistryDwords", "RegistryDwordsPerDevice"}:
            origin = f"{source} {name}"
            found.extend(NvidiaParam(key, word, origin) for key, word in parse_dwords(value))
    return tuple(found)


def parse_information(text: str) -> dict[str, str]:
    """Fields of /proc/driver/nvidia/gpus/<bdf>/information."""
    fields = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    return fields


def _read_params(root: Path) -> Probe[tuple[NvidiaParam, ...]]:
    proc = root / "proc/driver/nvidia/params"
    text = read_text(proc)
    found: list[NvidiaParam] = []
    if text.value is not None:
        found.extend(parse_params(text.value, "/proc/driver/nvidia/params"))
    folder = root / "sys/module/nvidia/parameters"
    for name in read_names(folder).get(()):
        value = read_text(folder / name)
        if value.value is not None:
            plain = name.removeprefix("NVreg_")
            found.append(NvidiaParam(plain, value.value, f"/sys/module/nvidia/parameters/{name}"))
    if text.unknown and not found:
        return Probe(unknown=text.unknown)
    return known(tuple(found))


def read_driver(root: Path) -> NvidiaDriver:
    """The loaded driver; every field unknown when there is none."""
    path = root / "proc/driver/nvidia/version"
    text = read_text(path)
    flavour: Probe[str]
    version: Probe[str]
    if text.value is None:
        flavour = version = Probe(unknown=text.unknown)
    else:
        try:
            first, second = parse_version(text.value)
            flavour, version = known(first), known(second)
        except ValueError:
            flavour = version = unknown(Why.UNREADABLE, f"{path}: {text.value[:60]!r}")
    modules = read_names(root / "sys/module")
    peermem = (
        Probe[bool](unknown=modules.unknown)
        if modules.value is None
        else known("nvidia_peermem" in modules.value)
    )
    return NvidiaDriver(flavour, version, _read_params(root), peermem)


def _field(fields: Probe[dict[str, str]], name: str) -> Probe[str]:
    if fields.value is None:
        return Probe(unknown=fields.unknown)
    value = fields.value.get(name, "")
    # The driver prints question marks for what it has not asked the GPU yet.
    if not value or "?" in value:
        return unknown(Why.UNREADABLE, f"{name}: {value!r} in /proc/driver/nvidia/gpus")
    return known(value)


def _read_information(root: Path, device: PciDevice) -> Probe[dict[str, str]]:
    if device.runtime_status.get("") in {"suspended", "suspending", "error"}:
        return unknown(Why.ASLEEP, f"GPU {device.bdf} is {device.runtime_status.value}")
    text = read_text(root / "proc/driver/nvidia/gpus" / device.bdf / "information")
    if text.value is None:
        return Probe(unknown=text.unknown)
    return known(parse_information(text.value))


def _first(*probes: Probe[str]) -> Probe[str]:
    return next((probe for probe in probes if probe.is_known), probes[0])


def is_gpu(device: PciDevice) -> bool:
    """An NVIDIA function of a display class."""
    return device.vendor == NVIDIA_VENDOR and device.class_code >> 8 in {_VGA, _3D}


def read_gpu(
    root: Path,
    index: int,
    device: PciDevice,
    state: GpuState,
    details: NvmlGpu | None,
) -> Gpu:
    """One GPU; `details` from NVML where somebody asked it."""
    fields = _read_information(root, device)
    minor = _field(fields, "Device Minor")
    nothing = Unknown(Why.NOT_ASKED, "NVML was not asked")
    return Gpu(
        index=index,
        bdf=device.bdf,
        name=_first(_field(fields, "Model"), *([details.name] if details else [])),
        uuid=_first(_field(fields, "GPU UUID"), *([details.uuid] if details else [])),
        serial=details.serial if details else Probe(unknown=nothing),
        minor=read_value(minor, int),
        vbios=_first(_field(fields, "Video BIOS"), *([details.vbios] if details else [])),
        ecc=details.ecc if details else Probe(unknown=nothing),
        gsp_firmware=_field(fields, "GPU Firmware"),
        bar1_used_bytes=details.bar1_used_bytes if details else Probe(unknown=nothing),
        state=_merge_state(state, details),
    )


def _merge_state(state: GpuState, details: NvmlGpu | None) -> GpuState:
    """The driver's own answer first; NVML's MIG and BAR1 size where that is missing."""
    if details is None:
        return state
    return GpuState(
        static_bar1=state.static_bar1,
        bar1_bytes=state.bar1_bytes if state.bar1_bytes.is_known else details.bar1_bytes,
        mig=state.mig if state.mig.is_known else details.mig,
        coherent=state.coherent,
        dmabuf=state.dmabuf,
    )
