"""The contract that every exporter and importer keeps, as plain functions.

pytest runs it on what this machine has; the VM tests run this file inside the guest, which has no pytest:
    python3 contract.py EXPORTER IMPORTER
prints one line a check and ends with status 1 when one failed. Checks raise AssertionError with what was wrong.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.stack import registry
from gdrstorm.stack.exporter import DmaBuf, Exporter, Memory
from gdrstorm.stack.importer import ACCESS_DEFAULT
from gdrstorm.stack.verify import MappableMemory
from gdrstorm.uapi import dma_buf

SIZE = 256 * 1024
PAGE = mmap.PAGESIZE
ExporterCheck = Callable[[str], None]
ImporterCheck = Callable[[str, str], None]


def open_descriptors() -> set[str]:
    """Links of all descriptors of this process that name something owned by a stack."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    kinds = ("dmabuf", "memfd", "vfio", "udmabuf", "dma_heap", "dri", "uverbs", "infinibandevent")
    return {f"{link} x{links.count(link)}" for link in links if any(kind in link for kind in kinds)}


@contextmanager
def nothing_left() -> Iterator[None]:
    """All descriptors that the block opened are closed at its end."""
    before = open_descriptors()
    yield
    left = open_descriptors() - before
    assert not left, f"descriptors left open: {sorted(left)}"


@contextmanager
def refused(*errnos: int) -> Iterator[None]:
    """The block raises CallError with one of the errnos."""
    try:
        yield
    except CallError as error:
        assert error.errno in errnos, f"refused with {error}, expected {errnos}"
    else:
        raise AssertionError("it was not refused")


@contextmanager
def exported(name: str) -> Iterator[tuple[Exporter, Memory, DmaBuf]]:
    with ExitStack() as stack:
        exporter = stack.enter_context(registry.open_exporter(name))
        memory = stack.enter_context(closing(exporter.alloc(SIZE)))
        yield exporter, memory, stack.enter_context(closing(exporter.export(memory, 0, SIZE)))


# -- exporters -----------------------------------------------------------------


def check_exporter_names_itself(name: str) -> None:
    with registry.open_exporter(name) as exporter:
        assert exporter.name == name
        part = exporter.describe()
        assert part.name == name and part.driver, part
        assert part.emulated or name != "fake", part


def check_export_makes_descriptors(name: str) -> None:
    with (
        nothing_left(),
        exported(name) as (exporter, memory, buffer),
        closing(exporter.export(memory, 0, SIZE)) as other,
    ):
        assert buffer.fd >= 0 and other.fd >= 0 and buffer.fd != other.fd
        assert buffer.size_bytes == SIZE
        for fd in (buffer.fd, other.fd):
            assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC, "not O_CLOEXEC"
            assert dma_buf.is_dma_buf(fd) or name == "fake", name
            assert dma_buf.read_size(fd) == SIZE


def check_close_twice(name: str) -> None:
    with nothing_left(), exported(name) as (exporter, memory, buffer):
        for _ in range(2):
            buffer.close()
            memory.close()
            exporter.close()


def check_buffer_outlives_memory(name: str) -> None:
    with nothing_left(), exported(name) as (_, memory, buffer):
        memory.close()
        assert dma_buf.read_size(buffer.fd) == SIZE


def check_bad_ranges_are_refused(name: str) -> None:
    with nothing_left(), exported(name) as (exporter, memory, _):
        for offset, size in (
            (0, 0),
            (1, PAGE),
            (0, PAGE - 1),
            (0, SIZE + PAGE),
            (SIZE, PAGE),
            (SIZE - PAGE, 2 * PAGE),
        ):
            with refused(errno.EINVAL):
                exporter.export(memory, offset, size).close()


def check_memory_is_shared(name: str) -> None:
    """What the CPU writes through one mapping is there in the next, and in the buffer where it can be mapped."""
    with nothing_left(), exported(name) as (_, memory, buffer):
        if not isinstance(memory, MappableMemory):
            return
        pattern = os.urandom(PAGE)
        with closing(memory.map()) as view:
            view[PAGE : 2 * PAGE] = pattern
        with closing(memory.map()) as view:
            assert view[PAGE : 2 * PAGE] == pattern
        if name != "vfio":  # vfio-pci's buffers have no mmap: the BAR has
            with closing(mmap.mmap(buffer.fd, SIZE)) as view:
                assert view[PAGE : 2 * PAGE] == pattern


def check_exporter_binding(name: str) -> None:
    with registry.open_exporter(name) as exporter:
        binding = exporter.binding()
        assert binding.backend == name
        for fd in binding.fds:
            os.fstat(fd)


# -- importers -----------------------------------------------------------------


def check_importer_names_itself(name: str, exporter: str) -> None:
    with registry.open_importer(name) as importer:
        assert importer.name == name
        part = importer.describe()
        assert (part.name == name and part.driver and part.version) or name == "fake", part


def check_register_and_close_twice(name: str, exporter: str) -> None:
    with (
        nothing_left(),
        exported(exporter) as (_, _, buffer),
        registry.open_importer(name) as importer,
    ):
        registration = importer.register(buffer.fd, 0, SIZE)
        assert registration.lkey >= 0 and registration.rkey >= 0
        registration.close()
        registration.close()


def check_range_with_offset(name: str, exporter: str) -> None:
    with exported(exporter) as (_, _, buffer), registry.open_importer(name) as importer:
        importer.register(buffer.fd, PAGE, 2 * PAGE, iova=PAGE).close()


def check_many_of_one_buffer(name: str, exporter: str) -> None:
    with (
        nothing_left(),
        exported(exporter) as (_, _, buffer),
        registry.open_importer(name) as importer,
    ):
        registrations = [importer.register(buffer.fd, 0, SIZE) for _ in range(16)]
        for registration in reversed(registrations):
            registration.close()


def check_registration_outlives_descriptor(name: str, exporter: str) -> None:
    with (
        nothing_left(),
        exported(exporter) as (_, memory, buffer),
        registry.open_importer(name) as importer,
    ):
        registration = importer.register(buffer.fd, 0, SIZE)
        buffer.close()
        memory.close()
        registration.close()


def check_closed_descriptor_is_refused(name: str, exporter: str) -> None:
    if name == "host-memory":  # it ignores the descriptor
        return
    with (
        nothing_left(),
        exported(exporter) as (_, _, buffer),
        registry.open_importer(name) as importer,
    ):
        fd = buffer.fd
        buffer.close()
        with refused(errno.EBADF):
            importer.register(fd, 0, SIZE)


def check_reregister(name: str, exporter: str) -> None:
    """It works, or says that it cannot."""
    with (
        exported(exporter) as (_, _, buffer),
        registry.open_importer(name) as importer,
        closing(importer.register(buffer.fd, 0, SIZE, access=ACCESS_DEFAULT)) as registration,
    ):
        try:
            importer.reregister(registration, 1)
        except CallError as error:
            assert error.errno in (errno.EOPNOTSUPP, errno.EINVAL), error


def check_importer_closes_twice(name: str, exporter: str) -> None:
    with nothing_left():
        importer = registry.open_importer(name)
        importer.close()
        importer.close()


def check_importer_binding(name: str, exporter: str) -> None:
    with registry.open_importer(name) as importer:
        try:
            binding = importer.binding()
        except UnavailableError:
            assert name == "uverbs"
            return
        assert binding.backend == name and (binding.fds or binding.addresses or name == "fake"), (
            binding
        )


EXPORTER_CHECKS: tuple[ExporterCheck, ...] = (
    check_exporter_names_itself,
    check_export_makes_descriptors,
    check_close_twice,
    check_buffer_outlives_memory,
    check_bad_ranges_are_refused,
    check_memory_is_shared,
    check_exporter_binding,
)
IMPORTER_CHECKS: tuple[ImporterCheck, ...] = (
    check_importer_names_itself,
    check_register_and_close_twice,
    check_range_with_offset,
    check_many_of_one_buffer,
    check_registration_outlives_descriptor,
    check_closed_descriptor_is_refused,
    check_reregister,
    check_importer_closes_twice,
    check_importer_binding,
)


def main(exporter: str, importer: str) -> int:
    """Both halves; status 1 when a check failed."""
    calls = [(check.__name__, lambda check=check: check(exporter)) for check in EXPORTER_CHECKS]
    calls += [
        (check.__name__, lambda check=check: check(importer, exporter)) for check in IMPORTER_CHECKS
    ]
    failed = 0
    for name, call in calls:
        try:
            call()
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok {name}", flush=True)
    print(f"{len(calls)} checks, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
