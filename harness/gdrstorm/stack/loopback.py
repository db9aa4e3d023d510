"""Two connected RC QPs of one RDMA device, made with pyverbs: the data path of a data check.

Owns context, PD, CQ, QPs and a local buffer; `close` ends them in the order that verbs wants.
The GID is the first RoCE v2 one of port 1, else any; without GIDs (InfiniBand) the LID is used.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from types import ModuleType
from typing import Any

from gdrstorm.errors import CallError, GdrstormError, UnavailableError
from gdrstorm.stack.importer.libibverbs import REGISTER_HINTS

_PORT = 1
_POLL_S = 20.0
_ACCESS = 7  # local write, remote write, remote read
# ibv_wc_status and the vendor syndromes of mlx5 that name a cause.
_HINTS = {
    4: "local protection: mapping, IOMMU, ACS, memory above the NIC's reach, or a wrong offset",
    10: "remote access: the rkey is revoked or wrong",
    11: "remote operation failed: the NIC cannot read or write the memory",
    12: "retries exceeded: the peer is gone, or the NIC cannot reach the memory",
}


#: Bytes on both sides of what a READ brings, in local memory.
GUARD = b"\xa5" * 64


class TransferError(GdrstormError):
    """A transfer completed with an error, or not at all."""


class Loopback:
    """Everything that one RDMA transfer to oneself needs."""

    def __init__(self, name: str, objects: list[Any], enums: ModuleType) -> None:
        self._name = name
        self._objects = objects
        self._e = enums
        self._context, self._pd, self._cq, self._local, *_ = objects
        self._qp: Any = None

    @classmethod
    def open(cls, name: str, size_bytes: int) -> Loopback:
        """Raises UnavailableError (no pyverbs) or CallError."""
        try:
            import pyverbs.enums as enums
            from pyverbs.cq import CQ
            from pyverbs.device import Context
            from pyverbs.mr import MR
            from pyverbs.pd import PD
        except ImportError as error:
            raise UnavailableError(f"no pyverbs: {error}", "install python3-pyverbs") from error
        objects: list[Any] = []
        with _Errors(f"cannot open RDMA device: {name}"):
            objects.append(Context(name=name))
            objects.append(PD(objects[0]))
            objects.append(CQ(objects[0], 16))
            objects.append(MR(objects[1], size_bytes + 2 * len(GUARD), _ACCESS))
        loopback = cls(name, objects, enums)
        try:
            loopback._connect()
        except BaseException:
            loopback.close()
            raise
        return loopback

    def register(self, fd: int, offset_bytes: int, length_bytes: int) -> int:
        """Register a range of a dma-buf in this PD, iova = offset; returns the rkey."""
        from pyverbs.mr import DmaBufMR

        with _Errors(f"cannot register MR: {self._name} fd={fd} offset={offset_bytes}"):
            mr = DmaBufMR(self._pd, length_bytes, _ACCESS, dmabuf=fd, offset=offset_bytes)
        self._objects.append(mr)
        return int(mr.rkey)

    def register_memory(
        self, memory: mmap.mmap, offset_bytes: int, length_bytes: int
    ) -> tuple[int, int]:
        """Register a range of ordinary memory; returns the address of `memory` and the rkey."""
        from pyverbs.mr import MR

        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        with _Errors(f"cannot register memory: {self._name} length={length_bytes}"):
            mr = MR(self._pd, length_bytes, _ACCESS, address=base + offset_bytes)
        self._objects.append(mr)
        return base, int(mr.rkey)

    def write(self, data: bytes, remote: int, rkey: int) -> None:
        """RDMA WRITE `data` to iova `remote`. Raises TransferError."""
        self._local.write(data, len(data))
        self._transfer(self._e.IBV_WR_RDMA_WRITE, len(data), remote, rkey)

    def read(self, length_bytes: int, remote: int, rkey: int) -> bytes:
        """RDMA READ from iova `remote`; what came with the guards around it. Raises TransferError."""
        guarded = length_bytes + 2 * len(GUARD)
        self._local.write(GUARD[:1] * guarded, guarded)
        self._transfer(self._e.IBV_WR_RDMA_READ, length_bytes, remote, rkey, len(GUARD))
        return bytes(self._local.read(guarded, 0))

    def _transfer(self, opcode: int, length: int, remote: int, rkey: int, at: int = 0) -> None:
        from pyverbs.wr import SGE, SendWR

        request = SendWR(
            opcode=opcode, num_sge=1, sg=[SGE(self._local.buf + at, length, self._local.lkey)]
        )
        request.set_wr_rdma(rkey, remote)
        with _Errors(f"cannot post: {self._name} opcode={opcode}"):
            self._qp.post_send(request)
        deadline = time.monotonic() + _POLL_S
        while time.monotonic() < deadline:
            count, completions = self._cq.poll(1)
            if count:
                return self._check(completions[0])
            time.sleep(0.0005)
        raise TransferError(f"no completion in {_POLL_S:.0f} s: {self._name} opcode={opcode}")

    def _check(self, completion: Any) -> None:
        if completion.status != self._e.IBV_WC_SUCCESS:
            raise TransferError(
                f"completion with status {completion.status}, vendor {completion.vendor_err:#x}",
                _HINTS.get(completion.status),
            )

    def _connect(self) -> None:
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        with _Errors(f"cannot connect QPs: {self._name}"):
            init = QPInitAttr(
                qp_type=self._e.IBV_QPT_RC,
                scq=self._cq,
                rcq=self._cq,
                cap=QPCap(max_send_wr=4, max_recv_wr=4),
                sq_sig_all=1,
            )
            pair = []
            for _ in range(2):
                attributes = QPAttr(port_num=_PORT)
                attributes.qp_access_flags = _ACCESS
                pair.append(QP(self._pd, init, attributes))
                self._objects.append(pair[-1])
            address = self._address()
            for own, peer in (pair, reversed(pair)):
                own.to_rts(self._ready(peer.qp_num, address))
            self._qp = pair[0]

    def _ready(self, peer: int, address: Any) -> Any:
        from pyverbs.qp import QPAttr

        attributes = QPAttr(port_num=_PORT)
        attributes.qp_access_flags = _ACCESS
        attributes.dest_qp_num = peer
        attributes.path_mtu = self._e.IBV_MTU_1024
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.timeout = 14
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.ah_attr = address
        return attributes

    def _address(self) -> Any:
        from pyverbs.addr import AHAttr, GlobalRoute

        port = self._context.query_port(_PORT)
        if port.link_layer == self._e.IBV_LINK_LAYER_INFINIBAND:
            return AHAttr(port_num=_PORT, is_global=0, dlid=port.lid)
        index = self._choose_gid()
        gid = self._context.query_gid(_PORT, index)
        route = GlobalRoute(dgid=gid, sgid_index=index)
        return AHAttr(port_num=_PORT, is_global=1, gr=route, dlid=port.lid)

    def _choose_gid(self) -> int:
        entries = [e for e in self._context.query_gid_table(256) if e.port_num == _PORT]
        if not entries:
            raise CallError(f"no GID: {self._name}", 61, "bring the interface up, give it an IP")
        # Type 2 is RoCE v2 (enum ibv_gid_type); it needs an IP address only for real networks.
        best = min(entries, key=lambda e: (e.gid_type != 2, e.gid_index))
        return int(best.gid_index)

    def close(self) -> None:
        """Close everything, youngest first; twice is legal. Raises CallError."""
        objects, self._objects = self._objects, []
        with _Errors(f"cannot close loopback: {self._name}"):
            for item in reversed(objects):
                item.close()


class _Errors:
    """pyverbs exceptions of a block become CallError."""

    def __init__(self, act: str) -> None:
        self._act = act

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        value = getattr(error, "error_code", None)
        if isinstance(value, int) and value:
            raise CallError(self._act, value, REGISTER_HINTS.get(value)) from error
