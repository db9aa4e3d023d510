"""What any exporter's dma-buf must survive without an importer: one check a case, all short.

Each check makes a few calls on one descriptor and compares their answers with what the dma-buf core
promises (drivers/dma-buf/dma-buf.c). Children are forked or executed, waited for, and close what
they got; the descriptor itself is left open and usable.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gdrstorm.errors import CallError, errno_name
from gdrstorm.model.gate import GateResult
from gdrstorm.stack.exporter import DmaBuf
from gdrstorm.uapi import dma_buf, dma_buf_ioctl

TABLE = "core"
OK = "ok"
_PAGE = mmap.PAGESIZE
_CHILD_LIMIT_S = 20
#: What a separate process does with a descriptor: same size, same CPU access.
_CHILD = """
import fcntl, os, socket, struct, sys
how, number, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if how == "closed":
    try:
        os.fstat(number)
    except OSError:
        sys.exit(0)
    sys.exit("descriptor survived exec")
if how == "receive":
    with socket.socket(fileno=number) as sock:
        number = socket.recv_fds(sock, 1, 1)[1][0]
assert os.lseek(number, 0, os.SEEK_END) == size, "size differs"
for flags in (3, 7):
    fcntl.ioctl(number, 0x40086200, struct.pack("Q", flags))
os.close(number)
"""


def run_core_checks(
    dmabuf: DmaBuf, export: Callable[[], DmaBuf] | None = None
) -> tuple[GateResult, ...]:
    """All checks on one dma-buf, in order. `export` makes another one, for the descriptor limit."""
    results = [_run(case, expected, check, dmabuf) for case, expected, check in _CHECKS]
    if export is None:
        results.append(_skipped("export at the descriptor limit", "no exporter was given"))
    else:
        results.append(
            _run(
                "export at the descriptor limit",
                ("EMFILE", "NV_ERR_OPERATING_SYSTEM", "CUDA_ERROR_OPERATING_SYSTEM"),
                lambda _: _export_at_limit(export),
                dmabuf,
            )
        )
    return tuple(results)


def _run(
    case: str, expected: tuple[str, ...], check: Callable[[DmaBuf], str], dmabuf: DmaBuf
) -> GateResult:
    note = ""
    try:
        got, _, note = check(dmabuf).partition(": ")
    except OSError as error:
        got = errno_name(error.errno or 0)
    except CallError as error:
        got = name_of(error)
    except ValueError as error:  # Python's own mmap looks at the size of regular files
        got, note = "wrong", str(error)
    return GateResult(
        TABLE, case, "dma-buf core", expected, got, got in expected, OK not in expected, note
    )


def name_of(error: CallError) -> str:
    """The word after the last colon of an error's message, without its number: `EINVAL`."""
    return error.message.rpartition(": ")[2].split(" ")[0]


def _skipped(case: str, why: str) -> GateResult:
    return GateResult(TABLE, case, "dma-buf core", (), "", False, skipped=why)


def _size(buf: DmaBuf) -> str:
    seen = dma_buf.read_size(buf.fd)
    return OK if seen == buf.size_bytes else f"wrong: lseek says {seen}, not {buf.size_bytes}"


def _seek_inside(buf: DmaBuf) -> str:
    os.lseek(buf.fd, _PAGE, os.SEEK_SET)
    return OK


def _sync(buf: DmaBuf) -> str:
    for access in (dma_buf.SYNC_READ, dma_buf.SYNC_WRITE, dma_buf.SYNC_RW):
        dma_buf.sync(buf.fd, access | dma_buf.SYNC_START)
        dma_buf.sync(buf.fd, access | dma_buf.SYNC_END)
    return OK


def _sync_bad_flags(buf: DmaBuf) -> str:
    dma_buf.sync(buf.fd, 1 << 40)
    return OK


def _sync_file(buf: DmaBuf) -> str:
    """A sync file of an idle buffer is signalled at once."""
    for access in (dma_buf.SYNC_READ, dma_buf.SYNC_WRITE, dma_buf.SYNC_RW):
        fd = dma_buf_ioctl.export_sync_file(buf.fd, access)
        try:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if not poller.poll(1000):
                return "wrong: the sync file of an idle buffer was not signalled in 1 s"
        finally:
            os.close(fd)
    return OK


def _sync_file_bad_flags(buf: DmaBuf) -> str:
    os.close(dma_buf_ioctl.export_sync_file(buf.fd, 0))
    return OK


def _poll(buf: DmaBuf) -> str:
    poller = select.poll()
    poller.register(buf.fd, select.POLLIN | select.POLLOUT)
    events = poller.poll(1000)
    if not events or events[0][1] & (select.POLLERR | select.POLLNVAL):
        return f"wrong: poll of an idle buffer said {events}"
    return OK


def _mmap(buf: DmaBuf) -> str:
    """Either the bytes can be written and read back, or mmap is refused."""
    with mmap.mmap(buf.fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as view:
        old = view[0]
        view[0] = old ^ 0xFF
        seen = view[0]
        view[0] = old
    return OK if seen == old ^ 0xFF else "wrong: a mapped byte did not keep its value"


def _mmap_past_end(buf: DmaBuf) -> str:
    mmap.mmap(buf.fd, buf.size_bytes + _PAGE, mmap.MAP_SHARED, mmap.PROT_READ).close()
    return OK


def _name(buf: DmaBuf) -> str:
    dma_buf_ioctl.set_name(buf.fd, b"gdrstorm-core-check")
    seen = _fdinfo(buf.fd).get("name", "")
    return OK if seen == "gdrstorm-core-check" else f"wrong: fdinfo says name {seen!r}"


def _name_too_long(buf: DmaBuf) -> str:
    dma_buf_ioctl.set_name(buf.fd, b"x" * (dma_buf_ioctl.NAME_MAX + 1))
    return OK


def _name_null(buf: DmaBuf) -> str:
    fcntl.ioctl(buf.fd, dma_buf_ioctl.IOCTL_SET_NAME, 0)
    return OK


def _fdinfo(fd: int) -> dict[str, str]:
    pairs = (
        line.partition(":") for line in Path(f"/proc/self/fdinfo/{fd}").read_text().split("\n")
    )
    return {key: value.strip() for key, _, value in pairs}


def _fdinfo_fields(buf: DmaBuf) -> str:
    seen = _fdinfo(buf.fd)
    if seen.get("size") != str(buf.size_bytes) or not seen.get("exp_name"):
        return f"wrong: fdinfo has size {seen.get('size')}, exp_name {seen.get('exp_name')}"
    return f"{OK}: exp_name {seen['exp_name']}"


def _cloexec(buf: DmaBuf) -> str:
    return OK if fcntl.fcntl(buf.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC else "wrong: no FD_CLOEXEC"


def _dup(buf: DmaBuf) -> str:
    copy = os.dup(buf.fd)
    try:
        same = dma_buf.read_size(copy) == buf.size_bytes and dma_buf.is_dma_buf(copy)
    finally:
        os.close(copy)
    return OK if same and dma_buf.read_size(buf.fd) == buf.size_bytes else "wrong: size differs"


def _close_twice(buf: DmaBuf) -> str:
    copy = os.dup(buf.fd)
    os.close(copy)
    os.close(copy)
    return OK


def _read(buf: DmaBuf) -> str:
    os.read(buf.fd, 1)
    return OK


def _write(buf: DmaBuf) -> str:
    os.write(buf.fd, b"x")
    return OK


def _truncate(buf: DmaBuf) -> str:
    os.ftruncate(buf.fd, 0)
    return OK


def _unknown_ioctl(buf: DmaBuf) -> str:
    fcntl.ioctl(buf.fd, 0x400862FF, bytearray(8))
    return OK


def in_child(action: Callable[[], None]) -> int:
    """Run an action in a forked child; 0, the errno it raised, or 255 for anything else."""
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            action()
            status = 0
        except OSError as error:
            status = min(error.errno or 255, 255)
        except CallError as error:
            status = min(error.errno, 254) if error.errno < 254 else 254
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(buf: DmaBuf) -> str:
    """A child uses and closes its copy; the parent's stays."""

    def use() -> None:
        if dma_buf.read_size(buf.fd) != buf.size_bytes:
            raise OSError(errno.EPROTO, "size differs")
        dma_buf.sync(buf.fd, dma_buf.SYNC_RW)
        dma_buf.sync(buf.fd, dma_buf.SYNC_RW | dma_buf.SYNC_END)
        os.close(buf.fd)

    status = in_child(use)
    return _size(buf) if status == 0 else f"wrong: child said {errno_name(status)}"


def _run_program(how: str, number: int, size: int, pass_fds: tuple[int, ...]) -> str:
    command = [sys.executable, "-I", "-S", "-c", _CHILD, how, str(number), str(size)]
    done = subprocess.run(
        command,
        pass_fds=pass_fds,
        close_fds=bool(pass_fds),
        capture_output=True,
        timeout=_CHILD_LIMIT_S,
        check=False,
    )
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return OK if done.returncode == 0 else f"wrong: {words[-1] if words else done.returncode}"


def _exec_closes(buf: DmaBuf) -> str:
    return _run_program("closed", buf.fd, buf.size_bytes, ())


def _exec_inherits(buf: DmaBuf) -> str:
    return _run_program("inherited", buf.fd, buf.size_bytes, (buf.fd,))


def _scm_rights(buf: DmaBuf) -> str:
    """Another program gets the buffer over a socket and can use it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [buf.fd])
        return _run_program("receive", theirs.fileno(), buf.size_bytes, (theirs.fileno(),))


def _dup_at_limit(buf: DmaBuf) -> str:
    def use() -> None:
        limit_descriptors()
        os.dup(buf.fd)

    return _child_answer(in_child(use))


def limit_descriptors() -> None:
    """No further descriptor in this process (a forked child): the soft limit is what is open."""
    probe = os.dup(0)
    os.close(probe)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))


def _export_at_limit(export: Callable[[], DmaBuf]) -> str:
    """In this process, because RM and CUDA objects belong to it; the limit is put back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        limit_descriptors()
        export().close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return OK


def _child_answer(status: int) -> str:
    return OK if status == 0 else errno_name(status)


_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[DmaBuf], str]], ...] = (
    ("lseek to the end says the size", (OK,), _size),
    ("lseek to the middle", ("EINVAL",), _seek_inside),
    ("SYNC start and end, read, write, both", (OK,), _sync),
    ("SYNC with unknown flags", ("EINVAL",), _sync_bad_flags),
    ("EXPORT_SYNC_FILE and poll", (OK, "ENOTTY"), _sync_file),
    ("EXPORT_SYNC_FILE without flags", ("EINVAL", "ENOTTY"), _sync_file_bad_flags),
    ("poll of the buffer", (OK,), _poll),
    ("mmap", (OK, "EINVAL", "ENOTSUPP", "EOPNOTSUPP", "EPERM"), _mmap),
    ("mmap past the end", ("EINVAL", "ENOTSUPP", "EOPNOTSUPP", "EPERM"), _mmap_past_end),
    ("SET_NAME, seen in fdinfo", (OK,), _name),
    ("SET_NAME too long", ("EINVAL",), _name_too_long),
    ("SET_NAME with a null pointer", ("EFAULT",), _name_null),
    ("fdinfo", (OK,), _fdinfo_fields),
    ("closed on exec by default", (OK,), _cloexec),
    ("dup", (OK,), _dup),
    ("close twice", ("EBADF",), _close_twice),
    ("read", ("EINVAL",), _read),
    ("write", ("EINVAL",), _write),
    ("ftruncate", ("EINVAL",), _truncate),
    ("unknown ioctl", ("ENOTTY",), _unknown_ioctl),
    ("fork: child closes, parent keeps", (OK,), _fork),
    ("exec closes it", (OK,), _exec_closes),
    ("exec with an inherited descriptor", (OK,), _exec_inherits),
    ("SCM_RIGHTS to another program", (OK,), _scm_rights),
    ("dup at the descriptor limit", ("EMFILE",), _dup_at_limit),
    ("still usable afterwards", (OK,), _sync),
)
