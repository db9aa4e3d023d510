"""libibverbs by ctypes: devices, PDs and MRs as plain addresses, every failure a CallError.

The library is loaded when first needed, so that machines without it can import this. Structure
layouts: infiniband/verbs.h of rdma-core (public ABI IBVERBS_1.1, unchanged since 2006 for the parts
used here). Storms do not come here: the native engine makes the same calls without the GIL.
"""

from __future__ import annotations

import ctypes
import errno
import functools

import msgspec

from gdrstorm.errors import CallError, UnavailableError

_OPS_POINTERS = 32  # members of struct ibv_context_ops


class IbvDevice(ctypes.Structure):
    """struct ibv_device: `_ops` is two unused function pointers."""

    _fields_ = [
        ("ops", ctypes.c_void_p * 2),
        ("node_type", ctypes.c_int),
        ("transport_type", ctypes.c_int),
        ("name", ctypes.c_char * 64),
        ("dev_name", ctypes.c_char * 64),
        ("dev_path", ctypes.c_char * 256),
        ("ibdev_path", ctypes.c_char * 256),
    ]


class IbvContext(ctypes.Structure):
    """The head of struct ibv_context, up to the descriptors."""

    _fields_ = [
        ("device", ctypes.POINTER(IbvDevice)),
        ("ops", ctypes.c_void_p * _OPS_POINTERS),
        ("cmd_fd", ctypes.c_int),
        ("async_fd", ctypes.c_int),
        ("num_comp_vectors", ctypes.c_int),
    ]


class IbvPd(ctypes.Structure):
    """struct ibv_pd."""

    _fields_ = [("context", ctypes.c_void_p), ("handle", ctypes.c_uint32)]


class IbvMr(ctypes.Structure):
    """struct ibv_mr."""

    _fields_ = [
        ("context", ctypes.c_void_p),
        ("pd", ctypes.c_void_p),
        ("addr", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("handle", ctypes.c_uint32),
        ("lkey", ctypes.c_uint32),
        ("rkey", ctypes.c_uint32),
    ]


class HcaName(msgspec.Struct, frozen=True):
    """One RDMA device: its name, and the name of its uverbs node."""

    name: str
    uverbs: str


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "ibv_get_device_list": (ctypes.POINTER(ctypes.POINTER(IbvDevice)), [ctypes.c_void_p]),
    "ibv_free_device_list": (None, [ctypes.c_void_p]),
    "ibv_open_device": (ctypes.POINTER(IbvContext), [ctypes.c_void_p]),
    "ibv_close_device": (ctypes.c_int, [ctypes.c_void_p]),
    "ibv_alloc_pd": (ctypes.POINTER(IbvPd), [ctypes.c_void_p]),
    "ibv_dealloc_pd": (ctypes.c_int, [ctypes.c_void_p]),
    "ibv_reg_mr": (
        ctypes.POINTER(IbvMr),
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    ),
    "ibv_reg_dmabuf_mr": (
        ctypes.POINTER(IbvMr),
        [
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
        ],
    ),
    "ibv_rereg_mr": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
        ],
    ),
    "ibv_dereg_mr": (ctypes.c_int, [ctypes.c_void_p]),
}
REREG_CHANGE_ACCESS = 1 << 2  # enum ibv_rereg_mr_flags


@functools.cache
def load() -> ctypes.CDLL:
    """The library with typed functions. Raises UnavailableError when it is not here."""
    try:
        library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise UnavailableError(
            f"cannot load libibverbs.so.1: {error}",
            "install libibverbs1 and ibverbs-providers, version 34 or newer",
        ) from error
    return library


def read_devices() -> tuple[HcaName, ...]:
    """RDMA devices that have a userspace provider. Raises UnavailableError without the library."""
    library = load()
    listed = library.ibv_get_device_list(None)
    if not listed:
        if ctypes.get_errno() == errno.ENOSYS:  # no RDMA module is loaded at all
            return ()
        raise CallError("cannot list RDMA devices", ctypes.get_errno())
    try:
        found = []
        index = 0
        while listed[index]:
            device = listed[index].contents
            found.append(HcaName(device.name.decode(), device.dev_name.decode()))
            index += 1
        return tuple(found)
    finally:
        library.ibv_free_device_list(listed)


class Mr:
    """An ibv_mr. `close` deregisters, twice is legal."""

    def __init__(self, address: int, name: str) -> None:
        self._address = address
        self._name = name
        record = IbvMr.from_address(address)
        self.handle = int(record.handle)
        self.lkey = int(record.lkey)
        self.rkey = int(record.rkey)

    def rereg_access(self, access: int) -> None:
        """IBV_REREG_MR_CHANGE_ACCESS; the keys are read again. Raises CallError."""
        act = f"cannot reregister MR: {self._name} access={access:#x}"
        if not self._address:
            raise CallError(act, errno.EINVAL, "it is deregistered already")
        ctypes.set_errno(0)
        result = load().ibv_rereg_mr(self._address, REREG_CHANGE_ACCESS, None, None, 0, access)
        if result:
            # enum ibv_rereg_mr_err_code: -1 is bad input, seen before any call; the rest set errno.
            value = ctypes.get_errno() or errno.EINVAL
            raise CallError(act, value, REREG_HINTS.get(value))
        record = IbvMr.from_address(self._address)
        self.lkey, self.rkey = int(record.lkey), int(record.rkey)

    def close(self) -> None:
        address, self._address = self._address, 0
        if not address:
            return
        result = load().ibv_dereg_mr(address)
        if result:
            raise CallError(f"cannot deregister MR: {self._name} lkey={self.lkey:#x}", result)


class Hca:
    """An opened device with one PD. MRs must be closed before it."""

    def __init__(self, name: str, context: int, pd: int) -> None:
        self.name = name
        self._context = context
        self._pd = pd
        self._extra_pds: list[int] = []

    @classmethod
    def open(cls, name: str) -> Hca:
        """Open by name. Raises UnavailableError (no such device) or CallError."""
        library = load()
        context = _open_context(library, name)
        pd = library.ibv_alloc_pd(context)
        if not pd:
            value = ctypes.get_errno()
            library.ibv_close_device(context)
            raise CallError(f"cannot allocate PD: {name}", value)
        return cls(name, _address(context), _address(pd))

    @property
    def pd_address(self) -> int:
        """ibv_pd*, for the native engine."""
        return self._pd

    @property
    def pd_handle(self) -> int:
        return int(IbvPd.from_address(self._pd).handle)

    @property
    def command_fd(self) -> int:
        """The uverbs descriptor of the context; it stays the context's."""
        return int(IbvContext.from_address(self._context).cmd_fd)

    def alloc_extra_pd(self) -> int:
        """One more PD, for its handle only; ends with the device. Raises CallError."""
        pd = load().ibv_alloc_pd(self._context)
        if not pd:
            raise CallError(f"cannot allocate PD: {self.name}", ctypes.get_errno())
        self._extra_pds.append(_address(pd))
        return int(pd.contents.handle)

    def reg_dmabuf(self, fd: int, offset: int, length: int, iova: int, access: int) -> Mr:
        """ibv_reg_dmabuf_mr. Raises CallError."""
        act = (
            f"cannot register MR: {self.name} fd={fd} offset={offset} length={length} "
            f"iova={iova:#x} access={access:#x}"
        )
        ctypes.set_errno(0)
        mr = load().ibv_reg_dmabuf_mr(self._pd, offset, length, iova, fd, _signed(access))
        return self._mr(mr, act)

    def reg_memory(self, address: int, length: int, access: int) -> Mr:
        """ibv_reg_mr on memory of this process. Raises CallError."""
        act = f"cannot register memory: {self.name} length={length} access={access:#x}"
        ctypes.set_errno(0)
        return self._mr(load().ibv_reg_mr(self._pd, address, length, _signed(access)), act)

    def _mr(self, mr: object, act: str) -> Mr:
        if not mr:
            # A provider that returns NULL and sets nothing is a bug; EIO names it as one.
            value = ctypes.get_errno() or errno.EIO
            raise CallError(act, value, REGISTER_HINTS.get(value))
        return Mr(_address(mr), self.name)

    def close(self) -> None:
        """PD, then context, each tried; the first error is raised. Twice is legal."""
        pd, self._pd = self._pd, 0
        context, self._context = self._context, 0
        pds = [*self._extra_pds, pd] if pd else self._extra_pds
        self._extra_pds = []
        results = [
            (f"cannot deallocate PD: {self.name}", load().ibv_dealloc_pd(address))
            for address in pds
        ]
        if context:
            closed = load().ibv_close_device(context)
            value = ctypes.get_errno() if closed else 0
            results.append((f"cannot close device: {self.name}", value))
        for act, value in results:
            if value:
                raise CallError(act, value, "something that belongs to it is still open")


REGISTER_HINTS = {
    errno.EAGAIN: "no mkeys left? killed processes leave them; look for CREATE_MKEY in the log",
    errno.ENOMEM: "memlock limit, number of MRs, or the exporter has no address space left",
    errno.EFAULT: "not memory of this process; GPU memory needs a dma-buf",
    errno.ENODEV: "the buffer is revoked, or the device is going away",
    errno.EINVAL: "alignment, offset, access flags, or the peer-to-peer path was refused: "
    "the kernel log names both devices then",
    errno.EPROTONOSUPPORT: "the kernel's verbs are older than this libibverbs",
    errno.EOPNOTSUPP: "this provider or kernel has no dma-buf MRs; try: gdrstorm check",
    524: "the exporter refused the attachment: topology or mapping type",
}


REREG_HINTS = {
    errno.EINVAL: "access flags, or a dma-buf MR: libibverbs has no REREG for those",
    errno.EOPNOTSUPP: "the driver has no REREG for this kind of MR",
}


def _open_context(library: ctypes.CDLL, name: str) -> object:
    listed = library.ibv_get_device_list(None)
    if not listed:
        raise UnavailableError(f"no RDMA device {name}", "modprobe the driver, or add an rxe link")
    try:
        index = 0
        while listed[index]:
            if listed[index].contents.name.decode() == name:
                context = library.ibv_open_device(listed[index])
                if context:
                    return context
                raise CallError(f"cannot open RDMA device: {name}", ctypes.get_errno())
            index += 1
    finally:
        library.ibv_free_device_list(listed)
    raise UnavailableError(f"no RDMA device {name}", f"there is: {_names()}")


def _names() -> str:
    return ", ".join(hca.name for hca in read_devices()) or "none"


def _address(pointer: object) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _signed(access: int) -> int:
    """access as C int: bit 31 is a legal bad input."""
    return ctypes.c_int(access & 0xFFFF_FFFF).value
