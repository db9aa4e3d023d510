"""The core importer and its checks on a memfd, which is no dma-buf: every check can fail."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdrstorm.errors import CallError
from gdrstorm.stack.descriptor import Descriptor
from gdrstorm.stack.importer.core import CoreImporter
from gdrstorm.stack.importer.core_checks import in_child, limit_descriptors, run_core_checks


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def memfd() -> Iterator[Descriptor]:
    buffer = Descriptor(os.memfd_create("x"), 65536)
    os.ftruncate(buffer.fd, 65536)
    yield buffer
    buffer.close()


def test_checks_tell_a_memfd_from_a_dma_buf(memfd: Descriptor) -> None:
    before = open_count()
    results = {result.case: result for result in run_core_checks(memfd)}
    assert len(results) == 27
    assert results["lseek to the end says the size"].passed
    assert results["mmap"].passed and results["mmap"].got == "ok"
    assert results["dup at the descriptor limit"].got == "EMFILE"
    failed = {case for case, result in results.items() if not result.passed and not result.skipped}
    assert {"SYNC start and end, read, write, both", "read", "fdinfo"} <= failed
    assert results["SYNC start and end, read, write, both"].got == "ENOTTY"
    assert results["exec with an inherited descriptor"].got == "wrong"
    assert results["exec with an inherited descriptor"].note == "AssertionError: size differs"
    assert results["export at the descriptor limit"].skipped == "no exporter was given"
    assert open_count() == before


def test_wrong_size_is_seen(memfd: Descriptor) -> None:
    memfd.size_bytes = 4096
    result = run_core_checks(memfd)[0]
    assert not result.passed
    assert result.note == "lseek says 65536, not 4096"


def test_export_at_the_limit_reports_what_the_exporter_said(memfd: Descriptor) -> None:
    def full() -> Descriptor:
        try:
            return Descriptor(os.dup(memfd.fd))
        except OSError as error:
            raise CallError("cannot export", error.errno or 0) from error

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = run_core_checks(memfd, full)[-1]
    assert last.passed and last.got == "EMFILE" and last.refused
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_children_answer_with_their_errno() -> None:
    def limited() -> None:
        limit_descriptors()
        os.dup(0)

    assert in_child(limited) == errno.EMFILE
    assert in_child(lambda: None) == 0


def test_importer_keeps_no_descriptor_when_it_is_refused(memfd: Descriptor) -> None:
    before = open_count()
    with CoreImporter.open() as importer:
        with pytest.raises(CallError, match="ENOTTY"):
            importer.register(memfd.fd, 0, 65536)
        with pytest.raises(CallError, match="ERANGE"):
            importer.register(memfd.fd, 4096, 65536)
        with pytest.raises(CallError, match="EBADF"):
            importer.register(-1, 0, 4096)
    assert open_count() == before
