"""Asks each RDMA device, by opening it, what no file tells: dma-buf MRs, MR limits, the provider.

Dma-buf support is found by trying: registering descriptor -1 answers EBADF where the kernel and
the provider know the call, EOPNOTSUPP or EPROTONOSUPPORT where one does not. Allocates a PD for
that and frees it; registers nothing. ABI: infiniband/verbs.h (struct ibv_device_attr).
"""

from __future__ import annotations

import ctypes
import errno
import struct
from pathlib import Path
from typing import Any

from gdrstorm.errors import errno_name
from gdrstorm.model.inventory import Probe, VerbsState, Why, known, unknown

_LIBRARY = "libibverbs.so.1"
# struct ibv_device_attr: fw_ver[64], then be64 node_guid and sys_image_guid, u64 max_mr_size at 80,
# ... int max_mr at 136. The kernel's own limit is generous; the buffer is larger than the struct.
_MAX_MR_SIZE_AT, _MAX_MR_AT, _ATTR_BYTES = 80, 136, 512
_NO_SUPPORT = {errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.ENOSYS}


def judge_dmabuf_errno(value: int) -> Probe[bool]:
    """What the errno of registering descriptor -1 says about dma-buf support."""
    if value == errno.EBADF:
        return known(True)
    if value in _NO_SUPPORT:
        return known(False)
    return unknown(Why.UNREADABLE, f"trying ibv_reg_dmabuf_mr with fd=-1: {errno_name(value)}")


def parse_device_attr(data: bytes) -> tuple[int, int]:
    """(max_mr, max_mr_size) of a struct ibv_device_attr."""
    (size,) = struct.unpack_from("<Q", data, _MAX_MR_SIZE_AT)
    (count,) = struct.unpack_from("<i", data, _MAX_MR_AT)
    return count, size


def _open_library() -> Any | None:
    try:
        lib = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        return None
    pointer = ctypes.c_void_p
    lib.ibv_get_device_list.restype = ctypes.POINTER(pointer)
    lib.ibv_get_device_list.argtypes = [ctypes.POINTER(ctypes.c_int)]
    lib.ibv_free_device_list.argtypes = [ctypes.POINTER(pointer)]
    lib.ibv_get_device_name.restype = ctypes.c_char_p
    lib.ibv_get_device_name.argtypes = [pointer]
    for name in ("ibv_open_device", "ibv_alloc_pd"):
        getattr(lib, name).restype = pointer
        getattr(lib, name).argtypes = [pointer]
    for name in ("ibv_close_device", "ibv_dealloc_pd"):
        getattr(lib, name).argtypes = [pointer]
    lib.ibv_query_device.argtypes = [pointer, ctypes.c_char_p]
    return lib


def _try_dmabuf(lib: Any, context: int) -> Probe[bool]:
    register = getattr(lib, "ibv_reg_dmabuf_mr", None)
    if register is None:
        return known(False)
    u64 = ctypes.c_uint64
    register.restype = ctypes.c_void_p
    register.argtypes = [ctypes.c_void_p, u64, ctypes.c_size_t, u64, ctypes.c_int, ctypes.c_int]
    pd = lib.ibv_alloc_pd(context)
    if not pd:
        return unknown(Why.UNREADABLE, f"ibv_alloc_pd: {errno_name(ctypes.get_errno())}")
    try:
        ctypes.set_errno(0)
        mr = register(pd, 0, 4096, 0, -1, 0)
        if mr:
            lib.ibv_dereg_mr(ctypes.c_void_p(mr))
            return unknown(Why.UNREADABLE, "descriptor -1 was registered")
        return judge_dmabuf_errno(ctypes.get_errno())
    finally:
        lib.ibv_dealloc_pd(pd)


def _ask_odp(name: str) -> Probe[bool]:
    try:
        from pyverbs.device import Context
    except ImportError:
        return unknown(Why.NO_LIBRARY, "pyverbs is not installed")
    try:
        with Context(name=name) as context:
            return known(bool(context.query_device_ex().odp_caps.general_caps & 1))
    except Exception as error:  # pyverbs raises several unrelated families
        return unknown(Why.UNREADABLE, f"ibv_query_device_ex: {error}".split("\n", 1)[0])


def _provider_path(device_name: str) -> Probe[str]:
    # Providers are dlopened when the list is made: the map then names the file that serves.
    family = "".join(c for c in device_name.split("_")[0] if c.isalnum())
    maps = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "-rdmav" in line}
    match = next((p for p in sorted(paths) if f"/lib{family}-rdmav" in p), None)
    if match is None:
        return unknown(Why.NO_FILE, f"no provider of {device_name} in /proc/self/maps")
    return known(match)


def _ask_device(lib: Any, device: int, name: str) -> VerbsState:
    context = lib.ibv_open_device(device)
    if not context:
        value = ctypes.get_errno()
        why = Why.NO_PERMISSION if value in {errno.EPERM, errno.EACCES} else Why.UNREADABLE
        detail = f"ibv_open_device {name}: {errno_name(value)}"
        return VerbsState(*(unknown(why, detail) for _ in range(5)))
    try:
        data = ctypes.create_string_buffer(_ATTR_BYTES)
        count: Probe[int]
        size: Probe[int]
        if value := lib.ibv_query_device(context, data):
            count = size = unknown(Why.UNREADABLE, f"ibv_query_device: {errno_name(value)}")
        else:
            first, second = parse_device_attr(data.raw)
            count, size = known(first), known(second)
        return VerbsState(
            dmabuf_mr=_try_dmabuf(lib, context),
            odp=_ask_odp(name),
            max_mr=count,
            max_mr_bytes=size,
            provider_path=_provider_path(name),
        )
    finally:
        lib.ibv_close_device(context)


def read_verbs() -> dict[str, VerbsState]:
    """State by device name; empty where libibverbs or every device is missing."""
    lib = _open_library()
    if lib is None:
        return {}
    count = ctypes.c_int(0)
    devices = lib.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        return {}
    try:
        found = {}
        for index in range(count.value):
            name = lib.ibv_get_device_name(devices[index]).decode()
            found[name] = _ask_device(lib, devices[index], name)
        return found
    finally:
        lib.ibv_free_device_list(devices)
