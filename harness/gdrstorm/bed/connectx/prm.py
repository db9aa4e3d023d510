"""Numbers of the mlx5 programming interface: commands, states, opcodes, syndromes, events.

Facts from Linux include/linux/mlx5/{device,qp,cq,mlx5_ifc}.h and rdma-core providers/mlx5. Vendor
syndromes are not documented; the values are those that users report from real cards.
"""

from __future__ import annotations

import enum
from typing import Final

PAGE_SHIFT: Final = 12
PAGE_SIZE: Final = 1 << PAGE_SHIFT
WQE_BB_BYTES: Final = 64
SEGMENT_BYTES: Final = 16
CQE_BYTES: Final = 64
EQE_BYTES: Final = 64
NO_BOUND_QP: Final = 0xFFFFFF
ANY_PD: Final = -1
NO_PD: Final = -2


class Op(enum.IntEnum):
    """MLX5_CMD_OP_*: the commands this model answers."""

    QUERY_HCA_CAP = 0x100
    QUERY_ADAPTER = 0x101
    INIT_HCA = 0x102
    TEARDOWN_HCA = 0x103
    ENABLE_HCA = 0x104
    DISABLE_HCA = 0x105
    QUERY_PAGES = 0x107
    MANAGE_PAGES = 0x108
    SET_HCA_CAP = 0x109
    QUERY_ISSI = 0x10A
    SET_ISSI = 0x10B
    SET_DRIVER_VERSION = 0x10D
    CREATE_MKEY = 0x200
    QUERY_MKEY = 0x201
    DESTROY_MKEY = 0x202
    QUERY_SPECIAL_CONTEXTS = 0x203
    PAGE_FAULT_RESUME = 0x204
    CREATE_EQ = 0x301
    DESTROY_EQ = 0x302
    QUERY_EQ = 0x303
    CREATE_CQ = 0x400
    DESTROY_CQ = 0x401
    QUERY_CQ = 0x402
    MODIFY_CQ = 0x403
    CREATE_QP = 0x500
    DESTROY_QP = 0x501
    RST2INIT_QP = 0x502
    INIT2RTR_QP = 0x503
    RTR2RTS_QP = 0x504
    RTS2RTS_QP = 0x505
    SQERR2RTS_QP = 0x506
    QP_2ERR = 0x507
    QP_2RST = 0x50A
    QUERY_QP = 0x50B
    SQD_RTS_QP = 0x50C
    MAD_IFC = 0x50D
    INIT2INIT_QP = 0x50E
    CREATE_XRC_SRQ = 0x705
    DESTROY_XRC_SRQ = 0x706
    QUERY_XRC_SRQ = 0x707
    ARM_XRC_SRQ = 0x708
    QUERY_VPORT_STATE = 0x750
    MODIFY_VPORT_STATE = 0x751
    QUERY_NIC_VPORT_CONTEXT = 0x754
    MODIFY_NIC_VPORT_CONTEXT = 0x755
    QUERY_ROCE_ADDRESS = 0x760
    SET_ROCE_ADDRESS = 0x761
    QUERY_HCA_VPORT_CONTEXT = 0x762
    MODIFY_HCA_VPORT_CONTEXT = 0x763
    QUERY_HCA_VPORT_GID = 0x764
    QUERY_HCA_VPORT_PKEY = 0x765
    QUERY_VPORT_COUNTER = 0x770
    ALLOC_Q_COUNTER = 0x771
    DEALLOC_Q_COUNTER = 0x772
    QUERY_Q_COUNTER = 0x773
    ALLOC_PD = 0x800
    DEALLOC_PD = 0x801
    ALLOC_UAR = 0x802
    DEALLOC_UAR = 0x803
    CONFIG_INT_MODERATION = 0x804
    ACCESS_REG = 0x805
    ATTACH_TO_MCG = 0x806
    DETACH_FROM_MCG = 0x807
    NOP = 0x80D
    ALLOC_XRCD = 0x80E
    DEALLOC_XRCD = 0x80F
    ALLOC_TRANSPORT_DOMAIN = 0x816
    DEALLOC_TRANSPORT_DOMAIN = 0x817
    SET_L2_TABLE_ENTRY = 0x829
    DELETE_L2_TABLE_ENTRY = 0x82B
    CREATE_TIR = 0x900
    MODIFY_TIR = 0x901
    DESTROY_TIR = 0x902
    CREATE_SQ = 0x904
    MODIFY_SQ = 0x905
    DESTROY_SQ = 0x906
    QUERY_SQ = 0x907
    CREATE_RQ = 0x908
    MODIFY_RQ = 0x909
    DESTROY_RQ = 0x90A
    QUERY_RQ = 0x90B
    CREATE_RMP = 0x90C
    MODIFY_RMP = 0x90D
    DESTROY_RMP = 0x90E
    QUERY_RMP = 0x90F
    CREATE_TIS = 0x912
    MODIFY_TIS = 0x913
    DESTROY_TIS = 0x914
    CREATE_RQT = 0x916
    MODIFY_RQT = 0x917
    DESTROY_RQT = 0x918
    SET_FLOW_TABLE_ROOT = 0x92F
    CREATE_FLOW_TABLE = 0x930
    DESTROY_FLOW_TABLE = 0x931
    CREATE_FLOW_GROUP = 0x933
    DESTROY_FLOW_GROUP = 0x934
    SET_FLOW_TABLE_ENTRY = 0x936
    DELETE_FLOW_TABLE_ENTRY = 0x938
    MODIFY_FLOW_TABLE = 0x93C


class Status(enum.IntEnum):
    """MLX5_CMD_STAT_*: the first byte of every command's answer."""

    OK = 0x0
    INTERNAL = 0x1
    BAD_OP = 0x2
    BAD_PARAM = 0x3
    BAD_SYS_STATE = 0x4
    BAD_RES = 0x5
    RES_BUSY = 0x6
    LIMIT = 0x8
    BAD_RES_STATE = 0x9
    BAD_INDEX = 0xA
    NO_RES = 0xF
    BAD_QP_STATE = 0x10
    BAD_CQ_SIZE = 0x40
    BAD_INPUT_LENGTH = 0x50
    BAD_OUTPUT_LENGTH = 0x51


class Delivery(enum.IntEnum):
    """MLX5_CMD_DELIVERY_STAT_*: how the command slot itself fared."""

    OK = 0x0
    BAD_BLOCK = 0x4
    FIRMWARE = 0x7
    BAD_INPUT_LENGTH = 0x8
    BAD_OUTPUT_LENGTH = 0x9
    BAD_DESCRIPTOR = 0x10


class CapGroup(enum.IntEnum):
    """The upper bits of op_mod in QUERY_HCA_CAP."""

    GENERAL = 0
    ETHERNET = 1
    ODP = 2
    ATOMIC = 3
    ROCE = 4
    FLOW_TABLE = 7


class Event(enum.IntEnum):
    """enum mlx5_event."""

    COMPLETION = 0x0
    COMM_EST = 0x2
    SQ_DRAINED = 0x3
    CQ_ERROR = 0x4
    WQ_CATASTROPHIC = 0x5
    PORT_CHANGE = 0x9
    COMMAND = 0xA
    PAGE_FAULT = 0xC
    WQ_INVALID_REQUEST = 0x10
    WQ_ACCESS_ERROR = 0x11
    SRQ_CATASTROPHIC = 0x12
    LAST_WQE = 0x13
    SRQ_LIMIT = 0x14


class PortChange(enum.IntEnum):
    """MLX5_PORT_CHANGE_SUBTYPE_*."""

    DOWN = 1
    ACTIVE = 4


class EventSource(enum.IntEnum):
    """MLX5_EVENT_QUEUE_TYPE_*: what a QP event's number counts."""

    QP = 0
    RQ = 1
    SQ = 2


class QpState(enum.IntEnum):
    """enum mlx5_qp_state."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQ_ERROR = 4
    SQ_DRAINED = 5
    ERROR = 6
    SQ_DRAINING = 7


class QpType(enum.IntEnum):
    """MLX5_QP_ST_*."""

    RC = 0x0
    UC = 0x1
    UD = 0x2
    XRC = 0x3
    QP0 = 0x7
    QP1 = 0x8
    RAW = 0x9
    REG_UMR = 0xC


class RqType(enum.IntEnum):
    """qpc.rq_type."""

    REGULAR = 0
    SRQ = 1
    NONE = 3


class WqState(enum.IntEnum):
    """MLX5_SQC_STATE_* and MLX5_RQC_STATE_*."""

    RESET = 0
    READY = 1
    ERROR = 3


class WqeOp(enum.IntEnum):
    """MLX5_OPCODE_*: what a send WQE asks for."""

    NOP = 0x00
    SEND_INVALIDATE = 0x01
    WRITE = 0x08
    WRITE_IMM = 0x09
    SEND = 0x0A
    SEND_IMM = 0x0B
    LSO = 0x0E
    READ = 0x10
    COMPARE_SWAP = 0x11
    FETCH_ADD = 0x12
    UMR = 0x25
    MULTI_PACKET = 0x29


class CqeOp(enum.IntEnum):
    """MLX5_CQE_*: the upper half of op_own."""

    REQUESTER = 0
    RECV_WRITE_IMM = 1
    RECV_SEND = 2
    RECV_SEND_IMM = 3
    RECV_SEND_INVALIDATE = 4
    RESIZE = 5
    REQUESTER_ERROR = 13
    RESPONDER_ERROR = 14
    INVALID = 15


class Syndrome(enum.IntEnum):
    """MLX5_CQE_SYNDROME_*."""

    LOCAL_LENGTH = 0x01
    LOCAL_QP_OPERATION = 0x02
    LOCAL_PROTECTION = 0x04
    FLUSHED = 0x05
    MW_BIND = 0x06
    BAD_RESPONSE = 0x10
    LOCAL_ACCESS = 0x11
    REMOTE_INVALID_REQUEST = 0x12
    REMOTE_ACCESS = 0x13
    REMOTE_OPERATION = 0x14
    RETRY_EXCEEDED = 0x15
    RNR_EXCEEDED = 0x16
    REMOTE_ABORTED = 0x22


VENDOR_SYNDROME: Final[dict[Syndrome, int]] = {
    Syndrome.LOCAL_LENGTH: 0x69,
    Syndrome.LOCAL_QP_OPERATION: 0x68,
    Syndrome.LOCAL_PROTECTION: 0x51,
    Syndrome.FLUSHED: 0xF9,
    Syndrome.MW_BIND: 0x78,
    Syndrome.BAD_RESPONSE: 0x8B,
    Syndrome.LOCAL_ACCESS: 0x53,
    Syndrome.REMOTE_INVALID_REQUEST: 0x8A,
    Syndrome.REMOTE_ACCESS: 0x88,
    Syndrome.REMOTE_OPERATION: 0x89,
    Syndrome.RETRY_EXCEEDED: 0x81,
    Syndrome.RNR_EXCEEDED: 0x87,
    Syndrome.REMOTE_ABORTED: 0x04,
}


class AccessMode(enum.IntEnum):
    """MLX5_MKC_ACCESS_MODE_*."""

    PHYSICAL = 0
    MTT = 1
    KLM = 2
    KSM = 3


# Bits are IntEnum, not IntFlag, whose operators are Python and slow: they make plain numbers.


class Access(enum.IntEnum):
    """Permission bits of an mkey."""

    LOCAL_READ = 1
    LOCAL_WRITE = 2
    REMOTE_READ = 4
    REMOTE_WRITE = 8
    ATOMIC = 16


class MkeyMask(enum.IntEnum):
    """MLX5_MKEY_MASK_*: which fields a UMR changes."""

    LENGTH = 1 << 0
    PAGE_SIZE = 1 << 1
    START = 1 << 6
    PD = 1 << 7
    REMOTE_INVALIDATE = 1 << 8
    KEY = 1 << 13
    QPN = 1 << 14
    LOCAL_READ = 1 << 17
    LOCAL_WRITE = 1 << 18
    REMOTE_READ = 1 << 19
    REMOTE_WRITE = 1 << 20
    ATOMIC = 1 << 21
    FREE = 1 << 29


class UmrFlag(enum.IntEnum):
    """MLX5_UMR_*: flags of a UMR control segment."""

    TRANSLATION_OFFSET = 1 << 4
    FAIL_IF_NOT_FREE = 1 << 5
    FAIL_IF_FREE = 2 << 5
    INLINE = 1 << 7


class PageFaultType(enum.IntEnum):
    """The type of a page-fault event: who met the missing page."""

    SRQ = 0
    REQUESTER_WRITE = 1
    RESPONDER = 2
    REQUESTER_READ = 3


class NicState(enum.IntEnum):
    """MLX5_INITIAL_SEG_NIC_INTERFACE_*."""

    FULL_DRIVER = 0
    DISABLED = 1
    NO_DRAM = 2
    SW_RESET = 7


class Reg(enum.IntEnum):
    """Registers behind ACCESS_REG that get more than an echo."""

    PMTU = 0x5003
    PTYS = 0x5004
    PAOS = 0x5006
    PPCNT = 0x5008
    PVLC = 0x500F
    NODE_DESC = 0x6001
    HOST_ENDIANNESS = 0x7004
