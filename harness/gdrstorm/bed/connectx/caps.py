"""Capabilities that the function reports: what it says it can do is what the model does.

Values as data, packed into the layouts of QUERY_HCA_CAP. A capability that the model does not
carry out is left out: the driver then never asks for it.
"""

from __future__ import annotations

from typing import Final

from gdrstorm.bed.connectx.fields import Field
from gdrstorm.bed.connectx.layouts import (
    AtomicCapsLayout,
    CmdHcaCapLayout,
    FlowTableNicCapLayout,
    FlowTablePropLayoutLayout,
    OdpCapLayout,
    OdpPerTransportServiceCapLayout,
    OdpSchemeCapLayout,
    PerProtocolNetworkingOffloadCapsLayout,
    RoceCapLayout,
)
from gdrstorm.bed.connectx.options import ConnectXOptions
from gdrstorm.bed.connectx.prm import CapGroup

CAP_BYTES: Final = 0x1000
TIMER_KHZ: Final = 1_000_000
LOG_BF_REG_SIZE: Final = 9
LOG_MAX_QP_SZ: Final = 15
LOG_MAX_CQ_SZ: Final = 22
LOG_MAX_EQ_SZ: Final = 22
LOG_MAX_SRQ_SZ: Final = 15
LOG_MAX_WQ_SZ: Final = 15

_GENERAL: Final[dict[Field, int]] = {
    CmdHcaCapLayout.page_request_disable: 1,
    CmdHcaCapLayout.log_max_srq_sz: LOG_MAX_SRQ_SZ,
    CmdHcaCapLayout.log_max_qp_sz: LOG_MAX_QP_SZ,
    CmdHcaCapLayout.log_max_qp: 17,
    CmdHcaCapLayout.log_max_srq: 12,
    CmdHcaCapLayout.log_max_cq_sz: LOG_MAX_CQ_SZ,
    CmdHcaCapLayout.log_max_cq: 16,
    CmdHcaCapLayout.log_max_eq_sz: LOG_MAX_EQ_SZ,
    CmdHcaCapLayout.log_max_mkey: 24,
    CmdHcaCapLayout.log_max_eq: 6,
    CmdHcaCapLayout.max_indirection: 4,
    CmdHcaCapLayout.log_max_mrw_sz: 63,
    CmdHcaCapLayout.umr_extended_translation_offset: 1,
    CmdHcaCapLayout.log_max_klm_list_size: 16,
    CmdHcaCapLayout.release_all_pages: 1,
    CmdHcaCapLayout.log_max_ra_req_qp: 4,
    CmdHcaCapLayout.log_max_ra_res_qp: 4,
    # 0 means 128 P_Keys, 2 means 32 GIDs.
    CmdHcaCapLayout.pkey_table_size: 0,
    CmdHcaCapLayout.gid_table_size: 2,
    CmdHcaCapLayout.max_qp_cnt: 32,
    CmdHcaCapLayout.vport_counters: 1,
    CmdHcaCapLayout.local_ca_ack_delay: 15,
    CmdHcaCapLayout.num_ports: 1,
    CmdHcaCapLayout.log_max_msg: 30,
    CmdHcaCapLayout.max_tc: 1,
    CmdHcaCapLayout.cqe_version: 1,
    CmdHcaCapLayout.compact_address_vector: 1,
    CmdHcaCapLayout.cq_oi: 1,
    CmdHcaCapLayout.cq_resize: 1,
    CmdHcaCapLayout.cq_moderation: 1,
    CmdHcaCapLayout.pg: 1,
    CmdHcaCapLayout.atomic: 1,
    CmdHcaCapLayout.umr_ptr_rlky: 1,
    CmdHcaCapLayout.imaicl: 1,
    CmdHcaCapLayout.xrc: 1,
    CmdHcaCapLayout.ud: 1,
    CmdHcaCapLayout.uc: 1,
    CmdHcaCapLayout.rc: 1,
    CmdHcaCapLayout.uar_4k: 1,
    CmdHcaCapLayout.num_of_uars_per_page: 1,
    CmdHcaCapLayout.log_pg_sz: 12,
    # With 0 the doorbell registers would not lie where the model decodes them.
    CmdHcaCapLayout.log_bf_reg_size: LOG_BF_REG_SIZE,
    CmdHcaCapLayout.max_wqe_sz_sq: 1024,
    CmdHcaCapLayout.max_wqe_sz_rq: 512,
    CmdHcaCapLayout.max_qp_mcg: 16,
    CmdHcaCapLayout.log_max_mcg: 8,
    CmdHcaCapLayout.log_max_transport_domain: 8,
    CmdHcaCapLayout.log_max_pd: 12,
    CmdHcaCapLayout.log_max_xrcd: 8,
    CmdHcaCapLayout.log_max_rq: 12,
    CmdHcaCapLayout.log_max_sq: 12,
    CmdHcaCapLayout.log_max_tir: 8,
    CmdHcaCapLayout.log_max_tis: 8,
    CmdHcaCapLayout.log_max_rmp: 12,
    CmdHcaCapLayout.log_max_rqt: 8,
    CmdHcaCapLayout.log_max_rqt_size: 8,
    CmdHcaCapLayout.log_max_tis_per_sq: 1,
    CmdHcaCapLayout.log_max_stride_sz_rq: 10,
    CmdHcaCapLayout.log_min_stride_sz_rq: 4,
    CmdHcaCapLayout.log_max_stride_sz_sq: 10,
    CmdHcaCapLayout.log_min_stride_sz_sq: 6,
    CmdHcaCapLayout.log_max_wq_sz: LOG_MAX_WQ_SZ,
    CmdHcaCapLayout.max_num_eqs: 32,
    CmdHcaCapLayout.device_frequency_khz: TIMER_KHZ,
}
_GENERAL_ETHERNET: Final[dict[Field, int]] = {
    CmdHcaCapLayout.port_type: 1,
    CmdHcaCapLayout.eth_net_offloads: 1,
    CmdHcaCapLayout.nic_flow_table: 1,
    CmdHcaCapLayout.roce: 1,
    CmdHcaCapLayout.log_max_current_uc_list: 5,
    CmdHcaCapLayout.log_max_current_mc_list: 5,
    CmdHcaCapLayout.log_max_vlan_list: 5,
}
_GENERAL_INFINIBAND: Final[dict[Field, int]] = {
    CmdHcaCapLayout.port_type: 0,
    CmdHcaCapLayout.ib_virt: 1,
}
_ETHERNET: Final[dict[Field, int]] = {
    PerProtocolNetworkingOffloadCapsLayout.csum_cap: 1,
    PerProtocolNetworkingOffloadCapsLayout.vlan_cap: 1,
    PerProtocolNetworkingOffloadCapsLayout.wqe_vlan_insert: 1,
    PerProtocolNetworkingOffloadCapsLayout.self_lb_en_modifiable: 1,
    PerProtocolNetworkingOffloadCapsLayout.max_lso_cap: 18,
    PerProtocolNetworkingOffloadCapsLayout.wqe_inline_mode: 1,
    PerProtocolNetworkingOffloadCapsLayout.rss_ind_tbl_cap: 8,
    PerProtocolNetworkingOffloadCapsLayout.scatter_fcs: 1,
}
_ROCE: Final[dict[Field, int]] = {
    # IPv4 and IPv6; with IPv4 missing mlx5_ib does not probe.
    RoceCapLayout.l3_type: 6,
    # RoCE v1 and v2.
    RoceCapLayout.roce_version: 5,
    RoceCapLayout.r_roce_dest_udp_port: 4791,
    RoceCapLayout.r_roce_max_src_udp_port: 0xFFFF,
    RoceCapLayout.r_roce_min_src_udp_port: 0xC000,
    RoceCapLayout.roce_address_table_size: 256,
}
_ATOMIC: Final[dict[Field, int]] = {
    AtomicCapsLayout.supported_atomic_req_8B_endianness_mode_1: 1,
    # Compare-and-swap and fetch-and-add, of eight bytes.
    AtomicCapsLayout.atomic_operations: 3,
    AtomicCapsLayout.atomic_size_qp: 8,
}
_FLOW_TABLE: Final[dict[Field, int]] = {
    FlowTablePropLayoutLayout.ft_support: 1,
    FlowTablePropLayoutLayout.flow_modify_en: 1,
    FlowTablePropLayoutLayout.modify_root: 1,
    FlowTablePropLayoutLayout.identified_miss_table_mode: 1,
    FlowTablePropLayoutLayout.flow_table_modify: 1,
    FlowTablePropLayoutLayout.log_max_ft_size: 16,
    FlowTablePropLayoutLayout.max_ft_level: 64,
    FlowTablePropLayoutLayout.log_max_ft_num: 8,
    FlowTablePropLayoutLayout.log_max_destination: 8,
    FlowTablePropLayoutLayout.log_max_flow: 16,
    # Which header fields can be matched: all that the driver might ask for.
    FlowTablePropLayoutLayout.ft_field_support: (1 << 128) - 1,
    FlowTablePropLayoutLayout.ft_field_bitmask_support: (1 << 128) - 1,
}


def build_caps(options: ConnectXOptions) -> dict[CapGroup, bytes]:
    """The maximum of every capability group that this function has."""
    general = _GENERAL | (_GENERAL_ETHERNET if options.is_ethernet else _GENERAL_INFINIBAND)
    general = general | {CmdHcaCapLayout.vhca_id: options.index + 1}
    groups = {
        CapGroup.GENERAL: _pack(general),
        CapGroup.ODP: _pack_odp(),
        CapGroup.ATOMIC: _pack(_ATOMIC),
    }
    if options.is_ethernet:
        groups[CapGroup.ETHERNET] = _pack(_ETHERNET)
        groups[CapGroup.ROCE] = _pack(_ROCE)
        groups[CapGroup.FLOW_TABLE] = _pack_flow_table()
    return groups


def _pack(values: dict[Field, int]) -> bytes:
    raw = bytearray(CAP_BYTES)
    for field, value in values.items():
        field.put(raw, value)
    return bytes(raw)


def _pack_flow_table() -> bytes:
    raw = bytearray(CAP_BYTES)
    base = FlowTableNicCapLayout.flow_table_properties_nic_receive.byte
    for field, value in _FLOW_TABLE.items():
        field.put(raw, value, base)
    return bytes(raw)


def _pack_odp() -> bytes:
    """On-demand paging of the transport scheme: RC and XRC with all operations, UD send."""
    raw = bytearray(CAP_BYTES)
    base = OdpCapLayout.transport_page_fault_scheme_cap.byte
    for transport in (OdpSchemeCapLayout.rc_odp_caps, OdpSchemeCapLayout.xrc_odp_caps):
        for field in (
            OdpPerTransportServiceCapLayout.send,
            OdpPerTransportServiceCapLayout.receive,
            OdpPerTransportServiceCapLayout.write,
            OdpPerTransportServiceCapLayout.read,
            OdpPerTransportServiceCapLayout.atomic,
            OdpPerTransportServiceCapLayout.srq_receive,
        ):
            field.put(raw, 1, base + transport.byte)
    ud = base + OdpSchemeCapLayout.ud_odp_caps.byte
    OdpPerTransportServiceCapLayout.send.put(raw, 1, ud)
    return bytes(raw)
