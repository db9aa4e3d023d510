"""Back ends by name. The only place that knows which there are; each is imported when asked for.

A back end that cannot even be imported here (a library is missing) is one that cannot be had, with
that reason; it never takes the others with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

import msgspec

from gdrstorm.errors import UnavailableError, UsageError
from gdrstorm.model.stack import Support
from gdrstorm.stack.exporter import Exporter
from gdrstorm.stack.importer import Importer

_EXPORTERS: Mapping[str, str] = {
    "cuda": "gdrstorm.stack.exporter.cuda:CudaExporter",
    "rm": "gdrstorm.stack.exporter.rm:RmExporter",
    "vfio": "gdrstorm.stack.exporter.vfio:VfioExporter",
    "udmabuf": "gdrstorm.stack.exporter.udmabuf:UdmabufExporter",
    "dmaheap": "gdrstorm.stack.exporter.dmaheap:DmaHeapExporter",
    "fake": "gdrstorm.stack.exporter.fake:FakeExporter",
}
_IMPORTERS: Mapping[str, str] = {
    "verbs": "gdrstorm.stack.importer.verbs:VerbsImporter",
    "uverbs": "gdrstorm.stack.importer.uverbs:UverbsImporter",
    "prime": "gdrstorm.stack.importer.prime:PrimeImporter",
    "host-memory": "gdrstorm.stack.importer.host_memory:HostMemoryImporter",
    "core": "gdrstorm.stack.importer.core:CoreImporter",
    "fake": "gdrstorm.stack.importer.fake:FakeImporter",
}


class BackEnd(msgspec.Struct, frozen=True):
    """One back end and whether it can work here; `kind` is exporter or importer."""

    kind: str
    name: str
    support: Support


def exporter_names() -> tuple[str, ...]:
    """All exporters, the most real first."""
    return tuple(_EXPORTERS)


def importer_names() -> tuple[str, ...]:
    """All importers, the most real first."""
    return tuple(_IMPORTERS)


def exporter_class(name: str) -> type[Exporter]:
    """Raises UsageError for an unknown name, UnavailableError when it cannot be imported."""
    return cast(type[Exporter], _load("exporter", name, _EXPORTERS))


def importer_class(name: str) -> type[Importer]:
    """Raises UsageError for an unknown name, UnavailableError when it cannot be imported."""
    return cast(type[Importer], _load("importer", name, _IMPORTERS))


def open_exporter(name: str, device: str | None = None) -> Exporter:
    """Raises UsageError, UnavailableError (probe's reason, or what open found) or CallError."""
    kind = exporter_class(name)
    _check_support(name, device, kind.probe(device))
    return kind.open(device)


def open_importer(name: str, device: str | None = None) -> Importer:
    """Raises UsageError, UnavailableError (probe's reason, or what open found) or CallError."""
    kind = importer_class(name)
    _check_support(name, device, kind.probe(device))
    return kind.open(device)


def probe_exporter(name: str, device: str | None = None) -> Support:
    """Whether it can work here. Raises UsageError for an unknown name."""
    try:
        return exporter_class(name).probe(device)
    except UnavailableError as error:
        return Support(False, error.message)


def probe_importer(name: str, device: str | None = None) -> Support:
    """Whether it can work here. Raises UsageError for an unknown name."""
    try:
        return importer_class(name).probe(device)
    except UnavailableError as error:
        return Support(False, error.message)


def probe_all() -> tuple[BackEnd, ...]:
    """Every back end with its default device."""
    exporters = [BackEnd("exporter", name, probe_exporter(name)) for name in _EXPORTERS]
    importers = [BackEnd("importer", name, probe_importer(name)) for name in _IMPORTERS]
    return (*exporters, *importers)


def _check_support(name: str, device: str | None, support: Support) -> None:
    if not support.ok:
        what = f"{name} {device}" if device else name
        raise UnavailableError(f"cannot use {what}: {support.reason}", "try: gdrstorm check")


def _load(kind: str, name: str, table: Mapping[str, str]) -> object:
    if name not in table:
        raise UsageError(f"no such {kind}: {name!r}", f"there are: {', '.join(table)}")
    module, _, attribute = table[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UnavailableError(f"{kind} {name} cannot be imported: {error}") from error
