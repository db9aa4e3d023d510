"""A guest without a kernel: memory, timers and a tiny driver for the device model's tests.

It builds the same contexts and work requests as mlx5 does, with the layouts' own fields, and drives
the model through its commands and doorbells. Time is a number that tests move.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from gdrstorm.bed.connectx.device import ConnectX
from gdrstorm.bed.connectx.fabric import Fabric
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.layouts import (
    AdsLayout,
    CqcLayout,
    CreateCqInLayout,
    CreateCqOutLayout,
    CreateEqInLayout,
    CreateEqOutLayout,
    CreateMkeyInLayout,
    CreateMkeyOutLayout,
    CreateQpInLayout,
    CreateQpOutLayout,
    CreateRmpInLayout,
    CreateRmpOutLayout,
    CreateXrcSrqInLayout,
    CreateXrcSrqOutLayout,
    EqcLayout,
    MkcLayout,
    QpcLayout,
    RmpcLayout,
    RoceAddrLayoutLayout,
    Rst2initQpInLayout,
    SetRoceAddressInLayout,
    WqLayout,
    XrcSrqcLayout,
)
from gdrstorm.bed.connectx.options import ConnectXOptions
from gdrstorm.bed.connectx.oracle import Oracle
from gdrstorm.bed.connectx.plant import Saboteur
from gdrstorm.bed.connectx.prm import Op, QpType, RqType
from gdrstorm.bed.vfio_user.device import DmaError

MEMORY_BYTES = 2 << 20
PAGE = 4096
SIGNALED = 8
SOLICITED = 2
ALL_ACCESS = 0x1F
UAR = 0x10000


class FakeTimer:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        self.run = None


class FakeContext:
    """Guest memory of one piece, with holes where a test unmapped it."""

    def __init__(self) -> None:
        self.memory = bytearray(MEMORY_BYTES)
        self.holes: list[tuple[int, int]] = []
        self.irqs: list[int] = []
        self.time_ns = 1_000_000_000
        self._timers: list[tuple[int, int, FakeTimer]] = []
        self._order = itertools.count()

    def _check(self, iova: int, size: int) -> None:
        if iova < 0 or iova + size > len(self.memory):
            raise DmaError(iova, size)
        if any(start < iova + size and iova < end for start, end in self.holes):
            raise DmaError(iova, size)

    def read_dma(self, iova: int, size: int) -> bytes:
        self._check(iova, size)
        return bytes(self.memory[iova : iova + size])

    def write_dma(self, iova: int, data: bytes | bytearray | memoryview) -> None:
        self._check(iova, len(data))
        self.memory[iova : iova + len(data)] = data

    def dma_view(self, iova: int, size: int) -> memoryview | None:
        return None

    def raise_irq(self, vector: int) -> None:
        self.irqs.append(vector)

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(fn)
        due = self.time_ns + round(delay_s * 1e9)
        heapq.heappush(self._timers, (due, next(self._order), timer))
        return timer

    def now_ns(self) -> int:
        return self.time_ns

    def pass_time(self, seconds: float, limit: int = 10_000) -> None:
        """Run the timers that fall due; more than `limit` of them is a loop."""
        end = self.time_ns + round(seconds * 1e9)
        for _ in range(limit):
            if not self._timers or self._timers[0][0] > end:
                self.time_ns = end
                return
            due, _, timer = heapq.heappop(self._timers)
            self.time_ns = max(self.time_ns, due)
            if timer.run is not None:
                run, timer.run = timer.run, None
                run()
        raise AssertionError("timers never end")


@dataclass
class GuestCq:
    number: int
    base: int
    log_size: int
    record: int
    consumer: int = 0


@dataclass
class GuestQp:
    number: int
    base: int
    record: int
    log_sq: int
    rq_bytes: int
    stride: int
    send_cq: GuestCq
    receive_cq: GuestCq
    type: int = QpType.RC
    sent: int = 0
    received: int = 0


@dataclass(frozen=True)
class Cqe:
    opcode: int
    send_opcode: int
    qpn: int
    user_index: int
    counter: int
    byte_count: int
    imm: int
    syndrome: int
    vendor: int
    remote_qpn: int


@dataclass
class Guest:
    """One function and its driver. Two guests may share a fabric."""

    index: int = 0
    fabric: Fabric = field(default_factory=Fabric)
    oracle: Oracle = field(default_factory=Oracle)
    saboteur: Saboteur = field(default_factory=Saboteur)
    options: ConnectXOptions | None = None

    def __post_init__(self) -> None:
        self.ctx = FakeContext()
        options = self.options or ConnectXOptions(index=self.index)
        self.device = ConnectX(options, self.fabric, self.oracle, self.saboteur)
        self.device.attach(self.ctx)
        self._free = PAGE
        self.pd = 7
        self.gid = bytes(15) + bytes((0x10 + self.index,))
        self.set_gid(0, self.gid)

    @property
    def function(self) -> Function:
        return self.device.function

    def alloc(self, size: int) -> int:
        at = self._free
        self._free += (size + PAGE - 1) // PAGE * PAGE
        assert self._free <= MEMORY_BYTES
        return at

    def put(self, at: int, data: bytes) -> None:
        self.ctx.memory[at : at + len(data)] = data

    def get(self, at: int, size: int) -> bytes:
        return bytes(self.ctx.memory[at : at + size])

    def command(self, op: int, request: bytes | bytearray) -> bytes:
        """Execute a command; the opcode is filled in."""
        raw = bytearray(request)
        raw[0:2] = op.to_bytes(2, "big")
        assert self.device._commands is not None
        return self.device._commands.execute(bytes(raw))

    def succeed(self, op: int, request: bytes | bytearray) -> bytes:
        reply = self.command(op, request)
        assert reply[0] == 0, f"{op!r} failed with status {reply[0]:#x}"
        return reply

    def set_gid(self, index: int, gid: bytes) -> None:
        request = bytearray(SetRoceAddressInLayout.SIZE_BYTES)
        SetRoceAddressInLayout.roce_address_index.put(request, index)
        base = SetRoceAddressInLayout.roce_address.byte
        RoceAddrLayoutLayout.source_l3_address.put_bytes(request, gid, base)
        mac = self.function.port.mac
        start = base + RoceAddrLayoutLayout.source_mac_47_32.byte
        request[start : start + 6] = mac
        self.succeed(Op.SET_ROCE_ADDRESS, request)

    def make_eq(self, mask: int = 0, vector: int = 0, log_size: int = 6) -> int:
        base = self.alloc(64 << log_size)
        request = bytearray(CreateEqInLayout.SIZE_BYTES)
        at = CreateEqInLayout.eq_context_entry.byte
        EqcLayout.log_eq_size.put(request, log_size, at)
        EqcLayout.intr.put(request, vector, at)
        CreateEqInLayout.event_bitmask.put(request, mask << 192)
        reply = self.succeed(Op.CREATE_EQ, request + self._pages(base, 64 << log_size))
        self.eq_base = base
        return CreateEqOutLayout.eq_number.get(reply)

    def events(self, base: int, first: int = 0, log_size: int = 6) -> list[tuple[int, int, bytes]]:
        """(type, subtype, data) of the entries written since `first`."""
        found = []
        for index in range(first, 1 << log_size):
            raw = self.get(base + index * 64, 64)
            if not any(raw):
                break
            found.append((raw[1], raw[3], raw[32:60]))
        return found

    @staticmethod
    def _pages(base: int, size: int) -> bytes:
        count = (size + PAGE - 1) // PAGE
        return struct.pack(f">{count}Q", *(base + i * PAGE for i in range(count)))

    def make_cq(self, log_size: int = 6, eqn: int = 0) -> GuestCq:
        base, record = self.alloc(64 << log_size), self.alloc(8)
        for index in range(1 << log_size):
            self.ctx.memory[base + index * 64 + 63] = 0xF1
        request = bytearray(CreateCqInLayout.SIZE_BYTES)
        at = CreateCqInLayout.cq_context.byte
        CqcLayout.log_cq_size.put(request, log_size, at)
        CqcLayout.c_eqn_or_apu_element.put(request, eqn, at)
        CqcLayout.dbr_addr.put(request, record, at)
        reply = self.succeed(Op.CREATE_CQ, request + self._pages(base, 64 << log_size))
        return GuestCq(CreateCqOutLayout.cqn.get(reply), base, log_size, record)

    def poll(self, cq: GuestCq) -> Cqe | None:
        """Take the next completion, as a driver does: by its owner bit."""
        raw = self.get(cq.base + (cq.consumer & (1 << cq.log_size) - 1) * 64, 64)
        owner = cq.consumer >> cq.log_size & 1
        if raw[63] >> 4 == 15 or raw[63] & 1 != owner:
            return None
        cq.consumer += 1
        self.put(cq.record, (cq.consumer & 0xFFFFFF).to_bytes(4, "big"))
        qpn = int.from_bytes(raw[56:60], "big")
        return Cqe(
            opcode=raw[63] >> 4,
            send_opcode=qpn >> 24,
            qpn=qpn & 0xFFFFFF,
            user_index=int.from_bytes(raw[32:36], "big"),
            counter=int.from_bytes(raw[60:62], "big"),
            byte_count=int.from_bytes(raw[44:48], "big"),
            imm=int.from_bytes(raw[36:40], "big"),
            syndrome=raw[55],
            vendor=raw[54],
            remote_qpn=int.from_bytes(raw[25:28], "big"),
        )

    def poll_all(self, cq: GuestCq) -> list[Cqe]:
        found = []
        while (cqe := self.poll(cq)) is not None:
            found.append(cqe)
        return found

    def make_mr(self, size: int, access: int = ALL_ACCESS, present: bool = True) -> tuple[int, int]:
        """(address, key) of registered memory; its virtual address is its guest address."""
        base = self.alloc(size)
        return base, self.make_key(base, size, access, present)

    def make_key(self, base: int, size: int, access: int = ALL_ACCESS, present: bool = True) -> int:
        pages = (size + PAGE - 1) // PAGE
        request = bytearray(CreateMkeyInLayout.SIZE_BYTES)
        at = CreateMkeyInLayout.memory_key_mkey_entry.byte
        for bit, name in enumerate(
            (MkcLayout.lr, MkcLayout.lw, MkcLayout.rr, MkcLayout.rw, MkcLayout.a)
        ):
            name.put(request, access >> bit & 1, at)
        MkcLayout.access_mode_1_0.put(request, 1, at)
        MkcLayout.qpn.put(request, 0xFFFFFF, at)
        MkcLayout.mkey_7_0.put(request, 0x42, at)
        MkcLayout.pd.put(request, self.pd, at)
        MkcLayout.start_addr.put(request, base, at)
        MkcLayout.len.put(request, size, at)
        MkcLayout.log_page_size.put(request, 12, at)
        MkcLayout.translations_octword_size.put(request, (pages + 1) // 2, at)
        CreateMkeyInLayout.pg_access.put(request, 1)
        CreateMkeyInLayout.translations_octword_actual_size.put(request, (pages + 1) // 2)
        bits = 3 if present else 0
        entries = [base + i * PAGE | bits if present else 0 for i in range(pages)]
        table = struct.pack(f">{pages}Q", *entries).ljust((pages + 1) // 2 * 16, b"\0")
        reply = self.succeed(Op.CREATE_MKEY, request + table)
        return CreateMkeyOutLayout.mkey_index.get(reply) << 8 | 0x42

    def make_qp(
        self,
        kind: int = QpType.RC,
        log_sq: int = 6,
        log_rq: int = 4,
        send_cq: GuestCq | None = None,
        srqn: int = 0,
    ) -> GuestQp:
        send_cq = send_cq or self.make_cq()
        receive_cq = self.make_cq()
        stride = 64
        rq_bytes = 0 if srqn or kind == QpType.REG_UMR else stride << log_rq
        base, record = self.alloc(rq_bytes + (64 << log_sq)), self.alloc(8)
        request = bytearray(CreateQpInLayout.SIZE_BYTES)
        at = CreateQpInLayout.qpc.byte
        QpcLayout.st.put(request, kind, at)
        QpcLayout.pd.put(request, self.pd, at)
        QpcLayout.log_sq_size.put(request, log_sq, at)
        QpcLayout.log_rq_size.put(request, log_rq, at)
        QpcLayout.log_rq_stride.put(request, 2, at)
        rq_type = RqType.SRQ if srqn else (RqType.REGULAR if rq_bytes else RqType.NONE)
        QpcLayout.rq_type.put(request, rq_type, at)
        QpcLayout.srqn_rmpn_xrqn.put(request, srqn, at)
        QpcLayout.cqn_snd.put(request, send_cq.number, at)
        QpcLayout.cqn_rcv.put(request, receive_cq.number, at)
        QpcLayout.dbr_addr.put(request, record, at)
        QpcLayout.user_index.put(request, 0x55, at)
        QpcLayout.rlky.put(request, 1, at)
        reply = self.succeed(Op.CREATE_QP, request + self._pages(base, rq_bytes + (64 << log_sq)))
        number = CreateQpOutLayout.qpn.get(reply)
        return GuestQp(number, base, record, log_sq, rq_bytes, stride, send_cq, receive_cq, kind)

    def modify(
        self,
        qp: GuestQp,
        op: Op,
        remote: Guest | None = None,
        remote_qpn: int = 0,
        retry_count: int = 7,
        rnr_retry: int = 7,
        ack_timeout: int = 10,
        access: int = 7,
    ) -> bytes:
        request = bytearray(Rst2initQpInLayout.SIZE_BYTES)
        Rst2initQpInLayout.qpn.put(request, qp.number)
        at = Rst2initQpInLayout.qpc.byte
        QpcLayout.st.put(request, qp.type, at)
        QpcLayout.pd.put(request, self.pd, at)
        QpcLayout.rre.put(request, access & 1, at)
        QpcLayout.rwe.put(request, access >> 1 & 1, at)
        QpcLayout.rae.put(request, access >> 2 & 1, at)
        QpcLayout.remote_qpn.put(request, remote_qpn, at)
        QpcLayout.retry_count.put(request, retry_count, at)
        QpcLayout.rnr_retry.put(request, rnr_retry, at)
        QpcLayout.min_rnr_nak.put(request, 12, at)
        QpcLayout.q_key.put(request, 0x1234, at)
        path = at + QpcLayout.primary_address_path.byte
        AdsLayout.ack_timeout.put(request, ack_timeout, path)
        if remote is not None:
            AdsLayout.rgid_rip.put_bytes(request, remote.gid, path)
            start = path + AdsLayout.rmac_47_32.byte
            request[start : start + 6] = remote.function.port.mac
        return self.succeed(op, request)

    def connect(self, qp: GuestQp, remote: Guest, peer: GuestQp, **options: int) -> None:
        """Bring a QP to RTS towards a peer."""
        access = options.pop("access", 7)
        self.modify(qp, Op.RST2INIT_QP, access=access)
        self.modify(qp, Op.INIT2RTR_QP, remote, peer.number)
        self.modify(qp, Op.RTR2RTS_QP, **options)

    def post_receive(self, qp: GuestQp, sges: list[tuple[int, int, int]]) -> None:
        """Post (address, key, size) entries; the list is ended as mlx5 ends it."""
        entries = qp.rq_bytes // qp.stride
        raw = b"".join(struct.pack(">IIQ", size, key, at) for at, key, size in sges)
        if len(raw) < qp.stride:
            raw += struct.pack(">IIQ", 0, 0x100, 0)
        self.put(qp.base + qp.received % entries * qp.stride, raw)
        qp.received += 1
        self.put(qp.record, (qp.received & 0xFFFF).to_bytes(4, "big"))

    def post(
        self, qp: GuestQp, op: int, *segments: bytes, imm: int = 0, flags: int = SIGNALED
    ) -> int:
        """Build one WQE in the ring; rings no doorbell. Gives its index."""
        body = b"".join(segments)
        body = body.ljust((len(body) + 15) // 16 * 16, b"\0")
        count = 1 + len(body) // 16
        index = qp.sent & 0xFFFF
        ctrl = struct.pack(">IIII", index << 8 | op, qp.number << 8 | count, flags, imm)
        raw = ctrl + body
        for at in range(0, len(raw), 64):
            block = (qp.sent + at // 64) % (1 << qp.log_sq)
            self.put(qp.base + qp.rq_bytes + block * 64, raw[at : at + 64])
        qp.sent += (len(raw) + 63) // 64
        self.put(qp.record + 4, (qp.sent & 0xFFFF).to_bytes(4, "big"))
        return index

    def ring(self, qp: GuestQp) -> None:
        word = struct.pack(">II", qp.sent << 8, qp.number << 8 | 1)
        self.device.region_write(0, UAR + 0x800, word)

    def send(
        self, qp: GuestQp, op: int, *segments: bytes, imm: int = 0, flags: int = SIGNALED
    ) -> int:
        index = self.post(qp, op, *segments, imm=imm, flags=flags)
        self.ring(qp)
        return index

    def make_xrc_srq(self, cq: GuestCq, pd: int) -> tuple[int, int, int]:
        """(number, ring, doorbell record) of an XRC SRQ of 16 entries."""
        base, record = self.alloc(64 << 4), self.alloc(8)
        request = bytearray(CreateXrcSrqInLayout.SIZE_BYTES)
        at = CreateXrcSrqInLayout.xrc_srq_context_entry.byte
        XrcSrqcLayout.log_xrc_srq_size.put(request, 4, at)
        XrcSrqcLayout.log_rq_stride.put(request, 2, at)
        XrcSrqcLayout.cqn.put(request, cq.number, at)
        XrcSrqcLayout.user_index.put(request, 0x77, at)
        XrcSrqcLayout.pd.put(request, pd, at)
        XrcSrqcLayout.db_record_addr_l.put(request, record >> 2, at)
        reply = self.succeed(Op.CREATE_XRC_SRQ, request + self._pages(base, 64 << 4))
        return CreateXrcSrqOutLayout.xrc_srqn.get(reply), base, record

    def make_srq(self, log_size: int = 4) -> tuple[int, int, int]:
        """(number, ring, doorbell record); every entry names the next."""
        base, record = self.alloc(64 << log_size), self.alloc(8)
        for index in range(1 << log_size):
            following = (index + 1) % (1 << log_size)
            self.put(base + index * 64, struct.pack(">2xH12x", following))
        request = bytearray(CreateRmpInLayout.SIZE_BYTES)
        at = CreateRmpInLayout.ctx.byte + RmpcLayout.wq.byte
        WqLayout.log_wq_sz.put(request, log_size, at)
        WqLayout.log_wq_stride.put(request, 6, at)
        WqLayout.pd.put(request, self.pd, at)
        WqLayout.dbr_addr.put(request, record, at)
        wanted = at + WqLayout.pas.byte
        request = request.ljust(wanted, b"\0")[:wanted]
        reply = self.succeed(Op.CREATE_RMP, request + self._pages(base, 64 << log_size))
        return CreateRmpOutLayout.rmpn.get(reply), base, record


def sge(address: int, key: int, size: int) -> bytes:
    return struct.pack(">IIQ", size, key, address)


def inline(data: bytes) -> bytes:
    raw = struct.pack(">I", 0x80000000 | len(data)) + data
    return raw.ljust((len(raw) + 15) // 16 * 16, b"\0")


def remote(address: int, key: int) -> bytes:
    return struct.pack(">QI4x", address, key)


def atomic(swap_add: int, compare: int = 0) -> bytes:
    return struct.pack(">QQ", swap_add, compare)


def datagram(target: Guest, qpn: int, qkey: int = 0x1234) -> bytes:
    head = struct.pack(">IIIBBH", qkey, 0, 0x80000000 | qpn, 0, 0, 0)
    mac = target.function.port.mac
    return head + bytes(4) + mac + bytes((0, 64)) + struct.pack(">I", 1 << 30) + target.gid


def pair(**options: int) -> tuple[Guest, GuestQp, Guest, GuestQp]:
    """Two functions on one fabric with a connected RC QP each."""
    first = Guest(0)
    second = Guest(1, first.fabric, first.oracle, first.saboteur)
    a, b = first.make_qp(), second.make_qp()
    first.connect(a, second, b, **options)
    second.connect(b, first, a, **options)
    return first, a, second, b
