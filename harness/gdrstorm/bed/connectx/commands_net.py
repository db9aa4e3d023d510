"""Commands on the port: vport contexts, GIDs, P_Keys, registers, counters, MADs and multicast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gdrstorm.bed.connectx.cmd import CommandError, Handler
from gdrstorm.bed.connectx.commands_core import accept, op_mod
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.layouts import (
    AccessRegisterInLayout,
    AccessRegisterOutLayout,
    AttachToMcgInLayout,
    HcaVportContextLayout,
    MadIfcInLayout,
    MadIfcOutLayout,
    ModifyHcaVportContextInLayout,
    ModifyNicVportContextInLayout,
    NicVportContextLayout,
    PaosRegLayout,
    PmtuRegLayout,
    PtysRegLayout,
    PvlcRegLayout,
    QueryHcaVportContextOutLayout,
    QueryHcaVportGidInLayout,
    QueryHcaVportGidOutLayout,
    QueryHcaVportPkeyInLayout,
    QueryHcaVportPkeyOutLayout,
    QueryNicVportContextInLayout,
    QueryNicVportContextOutLayout,
    QueryQCounterOutLayout,
    QueryRoceAddressInLayout,
    QueryRoceAddressOutLayout,
    QueryVportCounterOutLayout,
    QueryVportStateOutLayout,
    SetRoceAddressInLayout,
    TrafficCounterLayout,
)
from gdrstorm.bed.connectx.prm import Op, Reg, Status
from gdrstorm.bed.connectx.roce import Port

_PKEYS: Final = 128
_DEFAULT_PKEY: Final = 0xFFFF
_ALL_INDEXES: Final = 0xFFFF
_STATE_DOWN: Final = 1
_STATE_ACTIVE: Final = 4
_PHYSICAL_POLLING: Final = 2
_PHYSICAL_LINK_UP: Final = 5
_WRITE_REGISTER: Final = 0
_MAX_REGISTER_BYTES: Final = 4096
_NODE_DESC: Final = b"gdrstorm virtual ConnectX-6 Lx"
# Fields of MODIFY_NIC_VPORT_CONTEXT's field_select.
_SELECT_ROCE: Final = 1 << 0
_SELECT_MTU: Final = 1 << 6
# 25GBASE (eth_proto bit 27) and 25GAUI-1 (extended bit 4), InfiniBand EDR at four lanes.
_ETH_PROTO: Final = 1 << 27
_EXT_ETH_PROTO: Final = 1 << 4
_IB_EDR: Final = 32
_IB_WIDTH_4X: Final = 2
_IB_MAX_MTU: Final = 4096
_ETH_MAX_MTU: Final = 9978
_ETH_OVERHEAD: Final = 22
_MAD_BYTES: Final = 256
_MGMT_CLASS_SUBN: Final = frozenset({0x01, 0x81})
_ATTR_NODE_DESC: Final = 0x10
_ATTR_NODE_INFO: Final = 0x11


# Registers


def _pmtu(function: Function, data: bytearray, write: bool) -> None:
    port = function.port
    if not function.options.is_ethernet:
        for field in (PmtuRegLayout.max_mtu, PmtuRegLayout.admin_mtu, PmtuRegLayout.oper_mtu):
            field.put(data, _IB_MAX_MTU)
        return
    if write:
        wanted = PmtuRegLayout.admin_mtu.get(data)
        port.mtu = min(wanted, _ETH_MAX_MTU) - _ETH_OVERHEAD
    PmtuRegLayout.max_mtu.put(data, _ETH_MAX_MTU)
    PmtuRegLayout.admin_mtu.put(data, port.mtu + _ETH_OVERHEAD)
    PmtuRegLayout.oper_mtu.put(data, port.mtu + _ETH_OVERHEAD)


def _ptys(function: Function, data: bytearray, write: bool) -> None:
    if function.options.is_ethernet:
        for field in (
            PtysRegLayout.eth_proto_capability,
            PtysRegLayout.eth_proto_admin,
            PtysRegLayout.eth_proto_oper,
        ):
            field.put(data, _ETH_PROTO)
        for field in (
            PtysRegLayout.ext_eth_proto_capability,
            PtysRegLayout.ext_eth_proto_admin,
            PtysRegLayout.ext_eth_proto_oper,
        ):
            field.put(data, _EXT_ETH_PROTO)
    PtysRegLayout.ib_link_width_oper.put(data, _IB_WIDTH_4X)
    PtysRegLayout.ib_proto_oper.put(data, _IB_EDR)


def _paos(function: Function, data: bytearray, write: bool) -> None:
    up = 1 if function.port.is_up else 2
    if not write:
        PaosRegLayout.admin_status.put(data, 1)
    PaosRegLayout.oper_status.put(data, up)


def _pvlc(function: Function, data: bytearray, write: bool) -> None:
    # 0 is no valid number of virtual lanes; 1 is VL0 alone.
    for field in (PvlcRegLayout.vl_hw_cap, PvlcRegLayout.vl_admin, PvlcRegLayout.vl_operational):
        field.put(data, 1)


def _node_desc(function: Function, data: bytearray, write: bool) -> None:
    if not write:
        data[: len(_NODE_DESC)] = _NODE_DESC


_REGISTERS: Final[dict[int, Callable[[Function, bytearray, bool], None]]] = {
    Reg.PMTU: _pmtu,
    Reg.PTYS: _ptys,
    Reg.PAOS: _paos,
    Reg.PVLC: _pvlc,
    Reg.NODE_DESC: _node_desc,
}


def _access_reg(function: Function, request: bytes) -> bytearray:
    """Registers answer what they know; all others are an echo of what came."""
    start = AccessRegisterInLayout.register_data.byte
    data = bytearray(request[start : start + _MAX_REGISTER_BYTES])
    register = _REGISTERS.get(AccessRegisterInLayout.register_id.get(request))
    if register is not None:
        if len(data) < 64:
            data.extend(bytes(64 - len(data)))
        register(function, data, op_mod(request) == _WRITE_REGISTER)
    return bytearray(AccessRegisterOutLayout.SIZE_BYTES) + data


# Vports


def _query_vport_state(function: Function, request: bytes) -> bytearray:
    reply = bytearray(QueryVportStateOutLayout.SIZE_BYTES)
    QueryVportStateOutLayout.admin_state.put(reply, 1)
    QueryVportStateOutLayout.state.put(reply, function.port.is_up)
    return reply


def _query_nic_vport(function: Function, request: bytes) -> bytearray:
    port = function.port
    reply = bytearray(QueryNicVportContextOutLayout.SIZE_BYTES)
    base = QueryNicVportContextOutLayout.nic_vport_context.byte
    NicVportContextLayout.roce_en.put(reply, port.roce_enabled, base)
    NicVportContextLayout.mtu.put(reply, port.mtu, base)
    NicVportContextLayout.system_image_guid.put(reply, port.guid, base)
    NicVportContextLayout.port_guid.put(reply, port.guid, base)
    NicVportContextLayout.node_guid.put(reply, port.guid, base)
    NicVportContextLayout.permanent_address.put(reply, int.from_bytes(port.mac, "big"), base)
    kind = QueryNicVportContextInLayout.allowed_list_type.get(request)
    NicVportContextLayout.allowed_list_type.put(reply, kind, base)
    return reply


def _modify_nic_vport(function: Function, request: bytes) -> bytes:
    base = ModifyNicVportContextInLayout.nic_vport_context.byte
    select = ModifyNicVportContextInLayout.field_select.get(request)
    if select & _SELECT_ROCE:
        function.port.roce_enabled = bool(NicVportContextLayout.roce_en.get(request, base))
    if select & _SELECT_MTU:
        function.port.mtu = NicVportContextLayout.mtu.get(request, base)
    return bytes(16)


def _query_hca_vport(function: Function, request: bytes) -> bytearray:
    port = function.port
    reply = bytearray(QueryHcaVportContextOutLayout.SIZE_BYTES)
    base = QueryHcaVportContextOutLayout.hca_vport_context.byte
    state = _STATE_ACTIVE if port.is_up else _STATE_DOWN
    HcaVportContextLayout.vport_state.put(reply, state, base)
    HcaVportContextLayout.port_state.put(reply, state, base)
    physical = _PHYSICAL_LINK_UP if port.is_up else _PHYSICAL_POLLING
    HcaVportContextLayout.port_physical_state.put(reply, physical, base)
    HcaVportContextLayout.system_image_guid.put(reply, port.guid, base)
    HcaVportContextLayout.port_guid.put(reply, port.guid, base)
    HcaVportContextLayout.node_guid.put(reply, port.guid, base)
    HcaVportContextLayout.lid.put(reply, port.lid, base)
    HcaVportContextLayout.sm_lid.put(reply, 1, base)
    HcaVportContextLayout.cap_mask1.put(reply, port.capability_mask, base)
    # Which bits of the mask the driver may change: all.
    HcaVportContextLayout.cap_mask1_field_select.put(reply, 0xFFFFFFFF, base)
    return reply


def _modify_hca_vport(function: Function, request: bytes) -> bytes:
    base = ModifyHcaVportContextInLayout.hca_vport_context.byte
    select = HcaVportContextLayout.cap_mask1_field_select.get(request, base)
    wanted = HcaVportContextLayout.cap_mask1.get(request, base)
    port = function.port
    port.capability_mask = port.capability_mask & ~select | wanted & select
    return bytes(16)


def _query_gid(function: Function, request: bytes) -> bytearray:
    index = QueryHcaVportGidInLayout.gid_index.get(request)
    reply = bytearray(QueryHcaVportGidOutLayout.SIZE_BYTES)
    QueryHcaVportGidOutLayout.gids_num.put(reply, 1)
    gid = function.port.ib_gid if index in (0, _ALL_INDEXES) else bytes(16)
    return reply + gid


def _query_pkey(function: Function, request: bytes) -> bytearray:
    index = QueryHcaVportPkeyInLayout.pkey_index.get(request)
    reply = bytearray(QueryHcaVportPkeyOutLayout.SIZE_BYTES)
    table = [_DEFAULT_PKEY] + [0] * (_PKEYS - 1)
    if index != _ALL_INDEXES:
        table = [table[index] if index < _PKEYS else 0]
    # Each P_Key is the low half of a 32-bit entry.
    return reply + b"".join(pkey.to_bytes(4, "big") for pkey in table)


def _set_roce_address(function: Function, request: bytes) -> bytes:
    raw = SetRoceAddressInLayout.roce_address.bytes_of(request)
    index = SetRoceAddressInLayout.roce_address_index.get(request)
    if not function.port.set_gid(index, raw):
        raise CommandError(Status.BAD_INDEX)
    return bytes(16)


def _query_roce_address(function: Function, request: bytes) -> bytearray:
    reply = bytearray(QueryRoceAddressOutLayout.SIZE_BYTES)
    entry = function.port.gid_at(QueryRoceAddressInLayout.roce_address_index.get(request))
    if entry is not None:
        QueryRoceAddressOutLayout.roce_address.put_bytes(reply, entry.gid)
    return reply


def _query_vport_counter(function: Function, request: bytes) -> bytearray:
    counters = function.port.counters
    reply = bytearray(QueryVportCounterOutLayout.SIZE_BYTES)
    received = QueryVportCounterOutLayout.received_ib_unicast.byte
    TrafficCounterLayout.packets.put(reply, counters.receive_packets, received)
    TrafficCounterLayout.octets.put(reply, counters.receive_octets, received)
    sent = QueryVportCounterOutLayout.transmitted_ib_unicast.byte
    TrafficCounterLayout.packets.put(reply, counters.transmit_packets, sent)
    TrafficCounterLayout.octets.put(reply, counters.transmit_octets, sent)
    return reply


def _query_q_counter(function: Function, request: bytes) -> bytearray:
    return bytearray(QueryQCounterOutLayout.SIZE_BYTES)


# Management datagrams


def _mad_ifc(function: Function, request: bytes) -> bytearray:
    """Answer node description and information; the rest of subnet management is empty."""
    mad = bytearray(MadIfcInLayout.mad.bytes_of(request).ljust(_MAD_BYTES, b"\0"))
    attribute = int.from_bytes(mad[16:18], "big")
    mad[3] |= 0x80  # the response bit of the method
    if mad[1] in _MGMT_CLASS_SUBN and attribute == _ATTR_NODE_DESC:
        mad[64:128] = _NODE_DESC.ljust(64, b"\0")
    elif mad[1] in _MGMT_CLASS_SUBN and attribute == _ATTR_NODE_INFO:
        mad[64:104] = _node_info(function.port)
    reply = bytearray(MadIfcOutLayout.SIZE_BYTES)
    MadIfcOutLayout.response_mad_packet.put_bytes(reply, bytes(mad))
    return reply


def _node_info(port: Port) -> bytes:
    """Base and class version 1, a channel adapter of one port, then the GUIDs."""
    guid = port.guid.to_bytes(8, "big")
    device = (0x101F).to_bytes(2, "big")
    head = bytes((1, 1, 1, 1)) + guid * 3 + _PKEYS.to_bytes(2, "big")
    return head + device + bytes(4) + bytes((1, 0, 0x02, 0xC9))


def _attach_mcg(function: Function, request: bytes) -> bytes:
    qpn = AttachToMcgInLayout.qpn.get(request)
    if qpn not in function.qps:
        raise CommandError(Status.BAD_RES)
    gid = AttachToMcgInLayout.multicast_gid.bytes_of(request)
    function.fabric.attach(gid, function.index, qpn)
    return bytes(16)


def _detach_mcg(function: Function, request: bytes) -> bytes:
    gid = AttachToMcgInLayout.multicast_gid.bytes_of(request)
    if not function.fabric.detach(gid, function.index, AttachToMcgInLayout.qpn.get(request)):
        raise CommandError(Status.BAD_RES)
    return bytes(16)


NET_HANDLERS: Final[dict[Op, Handler]] = {
    Op.ACCESS_REG: _access_reg,
    Op.QUERY_VPORT_STATE: _query_vport_state,
    Op.MODIFY_VPORT_STATE: accept,
    Op.QUERY_NIC_VPORT_CONTEXT: _query_nic_vport,
    Op.MODIFY_NIC_VPORT_CONTEXT: _modify_nic_vport,
    Op.QUERY_HCA_VPORT_CONTEXT: _query_hca_vport,
    Op.MODIFY_HCA_VPORT_CONTEXT: _modify_hca_vport,
    Op.QUERY_HCA_VPORT_GID: _query_gid,
    Op.QUERY_HCA_VPORT_PKEY: _query_pkey,
    Op.SET_ROCE_ADDRESS: _set_roce_address,
    Op.QUERY_ROCE_ADDRESS: _query_roce_address,
    Op.QUERY_VPORT_COUNTER: _query_vport_counter,
    Op.QUERY_Q_COUNTER: _query_q_counter,
    Op.MAD_IFC: _mad_ifc,
    Op.ATTACH_TO_MCG: _attach_mcg,
    Op.DETACH_FROM_MCG: _detach_mcg,
}
