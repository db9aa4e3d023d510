"""Bit offsets and widths of mlx5 firmware structures.

Made by tools/gen_mlx5_layouts.py from include/linux/mlx5/mlx5_ifc.h of Linux 7.3.
Do not edit: name a field in the model and run the tool again. Only fields that are used are here.
"""

from __future__ import annotations

from typing import Final

from gdrstorm.bed.connectx.fields import Field, Layout


class AccessRegisterInLayout(Layout):
    """struct mlx5_ifc_access_register_in_bits."""

    SIZE_BYTES: Final = 0x10
    register_id: Final = Field(0x50, 0x10)
    register_data: Final = Field(0x80, 0x0)


class AccessRegisterOutLayout(Layout):
    """struct mlx5_ifc_access_register_out_bits."""

    SIZE_BYTES: Final = 0x10


class AdsLayout(Layout):
    """struct mlx5_ifc_ads_bits."""

    SIZE_BYTES: Final = 0x2C
    pkey_index: Final = Field(0x10, 0x10)
    grh: Final = Field(0x28, 0x1)
    rlid: Final = Field(0x30, 0x10)
    ack_timeout: Final = Field(0x40, 0x5)
    src_addr_index: Final = Field(0x48, 0x8)
    rgid_rip: Final = Field(0x80, 0x80)
    vhca_port_num: Final = Field(0x128, 0x8)
    rmac_47_32: Final = Field(0x130, 0x10)


class AllocPdOutLayout(Layout):
    """struct mlx5_ifc_alloc_pd_out_bits."""

    SIZE_BYTES: Final = 0x10
    pd: Final = Field(0x48, 0x18)


class AllocQCounterOutLayout(Layout):
    """struct mlx5_ifc_alloc_q_counter_out_bits."""

    SIZE_BYTES: Final = 0x10
    counter_set_id: Final = Field(0x58, 0x8)


class AllocTransportDomainOutLayout(Layout):
    """struct mlx5_ifc_alloc_transport_domain_out_bits."""

    SIZE_BYTES: Final = 0x10
    transport_domain: Final = Field(0x48, 0x18)


class AllocUarOutLayout(Layout):
    """struct mlx5_ifc_alloc_uar_out_bits."""

    SIZE_BYTES: Final = 0x10
    uar: Final = Field(0x48, 0x18)


class AllocXrcdOutLayout(Layout):
    """struct mlx5_ifc_alloc_xrcd_out_bits."""

    SIZE_BYTES: Final = 0x10
    xrcd: Final = Field(0x48, 0x18)


class ArmXrcSrqInLayout(Layout):
    """struct mlx5_ifc_arm_xrc_srq_in_bits."""

    SIZE_BYTES: Final = 0x10
    xrc_srqn: Final = Field(0x48, 0x18)
    lwm: Final = Field(0x70, 0x10)


class AtomicCapsLayout(Layout):
    """struct mlx5_ifc_atomic_caps_bits."""

    SIZE_BYTES: Final = 0x100
    atomic_req_8B_endianness_mode: Final = Field(0x40, 0x2)
    supported_atomic_req_8B_endianness_mode_1: Final = Field(0x46, 0x1)
    atomic_operations: Final = Field(0x90, 0x10)
    atomic_size_qp: Final = Field(0xB0, 0x10)


class AttachToMcgInLayout(Layout):
    """struct mlx5_ifc_attach_to_mcg_in_bits."""

    SIZE_BYTES: Final = 0x20
    qpn: Final = Field(0x48, 0x18)
    multicast_gid: Final = Field(0x80, 0x80)


class CmdHcaCapLayout(Layout):
    """struct mlx5_ifc_cmd_hca_cap_bits."""

    SIZE_BYTES: Final = 0x100
    page_request_disable: Final = Field(0x6, 0x1)
    vhca_id: Final = Field(0x30, 0x10)
    log_max_srq_sz: Final = Field(0x80, 0x8)
    log_max_qp_sz: Final = Field(0x88, 0x8)
    log_max_qp: Final = Field(0x9B, 0x5)
    log_max_srq: Final = Field(0xAB, 0x5)
    log_max_cq_sz: Final = Field(0xC8, 0x8)
    log_max_cq: Final = Field(0xDB, 0x5)
    log_max_eq_sz: Final = Field(0xE0, 0x8)
    log_max_mkey: Final = Field(0xEA, 0x6)
    log_max_eq: Final = Field(0xFC, 0x4)
    max_indirection: Final = Field(0x100, 0x8)
    log_max_mrw_sz: Final = Field(0x109, 0x7)
    umr_extended_translation_offset: Final = Field(0x118, 0x1)
    log_max_klm_list_size: Final = Field(0x11A, 0x6)
    release_all_pages: Final = Field(0x145, 0x1)
    log_max_ra_req_qp: Final = Field(0x14A, 0x6)
    log_max_ra_res_qp: Final = Field(0x15A, 0x6)
    gid_table_size: Final = Field(0x170, 0x10)
    vport_counters: Final = Field(0x181, 0x1)
    max_qp_cnt: Final = Field(0x186, 0xA)
    pkey_table_size: Final = Field(0x190, 0x10)
    ib_virt: Final = Field(0x1A2, 0x1)
    nic_flow_table: Final = Field(0x1A6, 0x1)
    local_ca_ack_delay: Final = Field(0x1AB, 0x5)
    port_type: Final = Field(0x1B6, 0x2)
    num_ports: Final = Field(0x1B8, 0x8)
    log_max_msg: Final = Field(0x1C3, 0x5)
    max_tc: Final = Field(0x1CC, 0x4)
    cqe_version: Final = Field(0x1FC, 0x4)
    compact_address_vector: Final = Field(0x200, 0x1)
    eth_net_offloads: Final = Field(0x21C, 0x1)
    roce: Final = Field(0x21D, 0x1)
    atomic: Final = Field(0x21E, 0x1)
    cq_oi: Final = Field(0x220, 0x1)
    cq_resize: Final = Field(0x221, 0x1)
    cq_moderation: Final = Field(0x222, 0x1)
    pg: Final = Field(0x227, 0x1)
    umr_ptr_rlky: Final = Field(0x230, 0x1)
    imaicl: Final = Field(0x231, 0x1)
    xrc: Final = Field(0x23C, 0x1)
    ud: Final = Field(0x23D, 0x1)
    uc: Final = Field(0x23E, 0x1)
    rc: Final = Field(0x23F, 0x1)
    uar_4k: Final = Field(0x240, 0x1)
    log_pg_sz: Final = Field(0x258, 0x8)
    log_bf_reg_size: Final = Field(0x26B, 0x5)
    max_wqe_sz_sq: Final = Field(0x290, 0x10)
    max_wqe_sz_rq: Final = Field(0x2B0, 0x10)
    max_qp_mcg: Final = Field(0x2E7, 0x19)
    log_max_mcg: Final = Field(0x318, 0x8)
    log_max_transport_domain: Final = Field(0x323, 0x5)
    log_max_pd: Final = Field(0x32B, 0x5)
    log_max_xrcd: Final = Field(0x33B, 0x5)
    log_max_rq: Final = Field(0x363, 0x5)
    log_max_sq: Final = Field(0x36B, 0x5)
    log_max_tir: Final = Field(0x373, 0x5)
    log_max_tis: Final = Field(0x37B, 0x5)
    log_max_rmp: Final = Field(0x383, 0x5)
    log_max_rqt: Final = Field(0x38B, 0x5)
    log_max_rqt_size: Final = Field(0x393, 0x5)
    log_max_tis_per_sq: Final = Field(0x39B, 0x5)
    log_max_stride_sz_rq: Final = Field(0x3A3, 0x5)
    log_min_stride_sz_rq: Final = Field(0x3AB, 0x5)
    log_max_stride_sz_sq: Final = Field(0x3B3, 0x5)
    log_min_stride_sz_sq: Final = Field(0x3BB, 0x5)
    log_max_wq_sz: Final = Field(0x3DB, 0x5)
    log_max_vlan_list: Final = Field(0x3EB, 0x5)
    log_max_current_mc_list: Final = Field(0x3F3, 0x5)
    log_max_current_uc_list: Final = Field(0x3FB, 0x5)
    max_num_eqs: Final = Field(0x470, 0x10)
    device_frequency_khz: Final = Field(0x4E0, 0x20)
    num_of_uars_per_page: Final = Field(0x520, 0x20)


class CqcLayout(Layout):
    """struct mlx5_ifc_cqc_bits."""

    SIZE_BYTES: Final = 0x40
    cqe_sz: Final = Field(0x8, 0x3)
    oi: Final = Field(0xE, 0x1)
    page_offset: Final = Field(0x54, 0x6)
    log_cq_size: Final = Field(0x63, 0x5)
    cq_period: Final = Field(0x84, 0xC)
    cq_max_count: Final = Field(0x90, 0x10)
    c_eqn_or_apu_element: Final = Field(0xA0, 0x20)
    log_page_size: Final = Field(0xC3, 0x5)
    producer_counter: Final = Field(0x168, 0x18)
    dbr_addr: Final = Field(0x1C0, 0x40)


class CreateCqInLayout(Layout):
    """struct mlx5_ifc_create_cq_in_bits."""

    SIZE_BYTES: Final = 0x110
    cq_context: Final = Field(0x80, 0x200)
    pas: Final = Field(0x880, 0x0)


class CreateCqOutLayout(Layout):
    """struct mlx5_ifc_create_cq_out_bits."""

    SIZE_BYTES: Final = 0x10
    cqn: Final = Field(0x48, 0x18)


class CreateEqInLayout(Layout):
    """struct mlx5_ifc_create_eq_in_bits."""

    SIZE_BYTES: Final = 0x110
    eq_context_entry: Final = Field(0x80, 0x200)
    event_bitmask: Final = Field(0x2C0, 0x100)
    pas: Final = Field(0x880, 0x0)


class CreateEqOutLayout(Layout):
    """struct mlx5_ifc_create_eq_out_bits."""

    SIZE_BYTES: Final = 0x10
    eq_number: Final = Field(0x58, 0x8)


class CreateFlowGroupInLayout(Layout):
    """struct mlx5_ifc_create_flow_group_in_bits."""

    SIZE_BYTES: Final = 0x400
    table_id: Final = Field(0xA8, 0x18)
    match_criteria_enable: Final = Field(0x1F8, 0x8)
    match_criteria: Final = Field(0x200, 0x1000)


class CreateFlowGroupOutLayout(Layout):
    """struct mlx5_ifc_create_flow_group_out_bits."""

    SIZE_BYTES: Final = 0x10
    group_id: Final = Field(0x48, 0x18)


class CreateFlowTableInLayout(Layout):
    """struct mlx5_ifc_create_flow_table_in_bits."""

    SIZE_BYTES: Final = 0x40
    flow_table_context: Final = Field(0xC0, 0x140)


class CreateFlowTableOutLayout(Layout):
    """struct mlx5_ifc_create_flow_table_out_bits."""

    SIZE_BYTES: Final = 0x10
    table_id: Final = Field(0x48, 0x18)


class CreateMkeyInLayout(Layout):
    """struct mlx5_ifc_create_mkey_in_bits."""

    SIZE_BYTES: Final = 0x110
    pg_access: Final = Field(0x60, 0x1)
    memory_key_mkey_entry: Final = Field(0x80, 0x200)
    translations_octword_actual_size: Final = Field(0x300, 0x20)
    klm_pas_mtt: Final = Field(0x880, 0x0)


class CreateMkeyOutLayout(Layout):
    """struct mlx5_ifc_create_mkey_out_bits."""

    SIZE_BYTES: Final = 0x10
    mkey_index: Final = Field(0x48, 0x18)


class CreateQpInLayout(Layout):
    """struct mlx5_ifc_create_qp_in_bits."""

    SIZE_BYTES: Final = 0x110
    qpc: Final = Field(0xC0, 0x740)
    pas: Final = Field(0x880, 0x0)


class CreateQpOutLayout(Layout):
    """struct mlx5_ifc_create_qp_out_bits."""

    SIZE_BYTES: Final = 0x10
    qpn: Final = Field(0x48, 0x18)


class CreateRmpInLayout(Layout):
    """struct mlx5_ifc_create_rmp_in_bits."""

    SIZE_BYTES: Final = 0x110
    ctx: Final = Field(0x100, 0x780)


class CreateRmpOutLayout(Layout):
    """struct mlx5_ifc_create_rmp_out_bits."""

    SIZE_BYTES: Final = 0x10
    rmpn: Final = Field(0x48, 0x18)


class CreateRqInLayout(Layout):
    """struct mlx5_ifc_create_rq_in_bits."""

    SIZE_BYTES: Final = 0x110
    ctx: Final = Field(0x100, 0x780)


class CreateRqOutLayout(Layout):
    """struct mlx5_ifc_create_rq_out_bits."""

    SIZE_BYTES: Final = 0x10
    rqn: Final = Field(0x48, 0x18)


class CreateRqtInLayout(Layout):
    """struct mlx5_ifc_create_rqt_in_bits."""

    SIZE_BYTES: Final = 0x110
    rqt_context: Final = Field(0x100, 0x780)


class CreateRqtOutLayout(Layout):
    """struct mlx5_ifc_create_rqt_out_bits."""

    SIZE_BYTES: Final = 0x10
    rqtn: Final = Field(0x48, 0x18)


class CreateSqInLayout(Layout):
    """struct mlx5_ifc_create_sq_in_bits."""

    SIZE_BYTES: Final = 0x110
    ctx: Final = Field(0x100, 0x780)


class CreateSqOutLayout(Layout):
    """struct mlx5_ifc_create_sq_out_bits."""

    SIZE_BYTES: Final = 0x10
    sqn: Final = Field(0x48, 0x18)


class CreateTirInLayout(Layout):
    """struct mlx5_ifc_create_tir_in_bits."""

    SIZE_BYTES: Final = 0x110
    ctx: Final = Field(0x100, 0x780)


class CreateTirOutLayout(Layout):
    """struct mlx5_ifc_create_tir_out_bits."""

    SIZE_BYTES: Final = 0x10
    tirn: Final = Field(0x48, 0x18)


class CreateTisInLayout(Layout):
    """struct mlx5_ifc_create_tis_in_bits."""

    SIZE_BYTES: Final = 0xC0
    ctx: Final = Field(0x100, 0x500)


class CreateTisOutLayout(Layout):
    """struct mlx5_ifc_create_tis_out_bits."""

    SIZE_BYTES: Final = 0x10
    tisn: Final = Field(0x48, 0x18)


class CreateXrcSrqInLayout(Layout):
    """struct mlx5_ifc_create_xrc_srq_in_bits."""

    SIZE_BYTES: Final = 0x110
    xrc_srq_context_entry: Final = Field(0x80, 0x200)
    pas: Final = Field(0x880, 0x0)


class CreateXrcSrqOutLayout(Layout):
    """struct mlx5_ifc_create_xrc_srq_out_bits."""

    SIZE_BYTES: Final = 0x10
    xrc_srqn: Final = Field(0x48, 0x18)


class DeallocPdInLayout(Layout):
    """struct mlx5_ifc_dealloc_pd_in_bits."""

    SIZE_BYTES: Final = 0x10
    pd: Final = Field(0x48, 0x18)


class DeallocQCounterInLayout(Layout):
    """struct mlx5_ifc_dealloc_q_counter_in_bits."""

    SIZE_BYTES: Final = 0x10
    counter_set_id: Final = Field(0x58, 0x8)


class DeallocTransportDomainInLayout(Layout):
    """struct mlx5_ifc_dealloc_transport_domain_in_bits."""

    SIZE_BYTES: Final = 0x10
    transport_domain: Final = Field(0x48, 0x18)


class DeallocUarInLayout(Layout):
    """struct mlx5_ifc_dealloc_uar_in_bits."""

    SIZE_BYTES: Final = 0x10
    uar: Final = Field(0x48, 0x18)


class DeallocXrcdInLayout(Layout):
    """struct mlx5_ifc_dealloc_xrcd_in_bits."""

    SIZE_BYTES: Final = 0x10
    xrcd: Final = Field(0x48, 0x18)


class DeleteFteInLayout(Layout):
    """struct mlx5_ifc_delete_fte_in_bits."""

    SIZE_BYTES: Final = 0x40
    table_id: Final = Field(0xA8, 0x18)
    flow_index: Final = Field(0x100, 0x20)


class DestroyCqInLayout(Layout):
    """struct mlx5_ifc_destroy_cq_in_bits."""

    SIZE_BYTES: Final = 0x10
    cqn: Final = Field(0x48, 0x18)


class DestroyEqInLayout(Layout):
    """struct mlx5_ifc_destroy_eq_in_bits."""

    SIZE_BYTES: Final = 0x10
    eq_number: Final = Field(0x58, 0x8)


class DestroyFlowGroupInLayout(Layout):
    """struct mlx5_ifc_destroy_flow_group_in_bits."""

    SIZE_BYTES: Final = 0x40
    table_id: Final = Field(0xA8, 0x18)
    group_id: Final = Field(0xC0, 0x20)


class DestroyFlowTableInLayout(Layout):
    """struct mlx5_ifc_destroy_flow_table_in_bits."""

    SIZE_BYTES: Final = 0x40
    table_id: Final = Field(0xA8, 0x18)


class DestroyMkeyInLayout(Layout):
    """struct mlx5_ifc_destroy_mkey_in_bits."""

    SIZE_BYTES: Final = 0x10
    mkey_index: Final = Field(0x48, 0x18)


class DestroyQpInLayout(Layout):
    """struct mlx5_ifc_destroy_qp_in_bits."""

    SIZE_BYTES: Final = 0x10
    qpn: Final = Field(0x48, 0x18)


class DestroyRmpInLayout(Layout):
    """struct mlx5_ifc_destroy_rmp_in_bits."""

    SIZE_BYTES: Final = 0x10
    rmpn: Final = Field(0x48, 0x18)


class DestroyRqInLayout(Layout):
    """struct mlx5_ifc_destroy_rq_in_bits."""

    SIZE_BYTES: Final = 0x10
    rqn: Final = Field(0x48, 0x18)


class DestroyRqtInLayout(Layout):
    """struct mlx5_ifc_destroy_rqt_in_bits."""

    SIZE_BYTES: Final = 0x10
    rqtn: Final = Field(0x48, 0x18)


class DestroySqInLayout(Layout):
    """struct mlx5_ifc_destroy_sq_in_bits."""

    SIZE_BYTES: Final = 0x10
    sqn: Final = Field(0x48, 0x18)


class DestroyTirInLayout(Layout):
    """struct mlx5_ifc_destroy_tir_in_bits."""

    SIZE_BYTES: Final = 0x10
    tirn: Final = Field(0x48, 0x18)


class DestroyTisInLayout(Layout):
    """struct mlx5_ifc_destroy_tis_in_bits."""

    SIZE_BYTES: Final = 0x10
    tisn: Final = Field(0x48, 0x18)


class DestroyXrcSrqInLayout(Layout):
    """struct mlx5_ifc_destroy_xrc_srq_in_bits."""

    SIZE_BYTES: Final = 0x10
    xrc_srqn: Final = Field(0x48, 0x18)


class EqcLayout(Layout):
    """struct mlx5_ifc_eqc_bits."""

    SIZE_BYTES: Final = 0x40
    page_offset: Final = Field(0x54, 0x6)
    log_eq_size: Final = Field(0x63, 0x5)
    intr: Final = Field(0xB4, 0xC)
    log_page_size: Final = Field(0xC3, 0x5)
    consumer_counter: Final = Field(0x148, 0x18)
    producer_counter: Final = Field(0x168, 0x18)


class FlowContextLayout(Layout):
    """struct mlx5_ifc_flow_context_bits."""

    SIZE_BYTES: Final = 0x300
    group_id: Final = Field(0x20, 0x20)
    action: Final = Field(0x70, 0x10)
    destination_list_size: Final = Field(0x88, 0x18)
    match_value: Final = Field(0x200, 0x1000)
    destination: Final = Field(0x1800, 0x0)


class FlowTableContextLayout(Layout):
    """struct mlx5_ifc_flow_table_context_bits."""

    SIZE_BYTES: Final = 0x28
    table_miss_action: Final = Field(0x4, 0x4)
    table_miss_id: Final = Field(0x28, 0x18)


class FlowTableNicCapLayout(Layout):
    """struct mlx5_ifc_flow_table_nic_cap_bits."""

    SIZE_BYTES: Final = 0x1000
    flow_table_properties_nic_receive: Final = Field(0x200, 0x200)


class FlowTablePropLayoutLayout(Layout):
    """struct mlx5_ifc_flow_table_prop_layout_bits."""

    SIZE_BYTES: Final = 0x40
    ft_support: Final = Field(0x0, 0x1)
    flow_modify_en: Final = Field(0x3, 0x1)
    modify_root: Final = Field(0x4, 0x1)
    identified_miss_table_mode: Final = Field(0x5, 0x1)
    flow_table_modify: Final = Field(0x6, 0x1)
    log_max_ft_size: Final = Field(0x22, 0x6)
    max_ft_level: Final = Field(0x38, 0x8)
    log_max_ft_num: Final = Field(0x78, 0x8)
    log_max_destination: Final = Field(0x98, 0x8)
    log_max_flow: Final = Field(0xB8, 0x8)
    ft_field_support: Final = Field(0x100, 0x80)
    ft_field_bitmask_support: Final = Field(0x180, 0x80)


class FteMatchSetLyr24Layout(Layout):
    """struct mlx5_ifc_fte_match_set_lyr_2_4_bits."""

    SIZE_BYTES: Final = 0x40
    smac_47_16: Final = Field(0x0, 0x20)
    smac_15_0: Final = Field(0x20, 0x10)
    ethertype: Final = Field(0x30, 0x10)
    dmac_47_16: Final = Field(0x40, 0x20)
    dmac_15_0: Final = Field(0x60, 0x10)
    first_prio: Final = Field(0x70, 0x3)
    first_vid: Final = Field(0x74, 0xC)
    ip_protocol: Final = Field(0x80, 0x8)
    ip_dscp: Final = Field(0x88, 0x6)
    ip_ecn: Final = Field(0x8E, 0x2)
    cvlan_tag: Final = Field(0x90, 0x1)
    ip_version: Final = Field(0x93, 0x4)
    tcp_sport: Final = Field(0xA0, 0x10)
    tcp_dport: Final = Field(0xB0, 0x10)
    ttl_hoplimit: Final = Field(0xD8, 0x8)
    udp_sport: Final = Field(0xE0, 0x10)
    udp_dport: Final = Field(0xF0, 0x10)
    src_ipv4_src_ipv6: Final = Field(0x100, 0x80)
    dst_ipv4_dst_ipv6: Final = Field(0x180, 0x80)


class HcaVportContextLayout(Layout):
    """struct mlx5_ifc_hca_vport_context_bits."""

    SIZE_BYTES: Final = 0x200
    port_physical_state: Final = Field(0x110, 0x4)
    port_state: Final = Field(0x118, 0x4)
    vport_state: Final = Field(0x11C, 0x4)
    system_image_guid: Final = Field(0x140, 0x40)
    port_guid: Final = Field(0x180, 0x40)
    node_guid: Final = Field(0x1C0, 0x40)
    cap_mask1: Final = Field(0x200, 0x20)
    cap_mask1_field_select: Final = Field(0x220, 0x20)
    lid: Final = Field(0x300, 0x10)
    sm_lid: Final = Field(0x320, 0x10)


class MadIfcInLayout(Layout):
    """struct mlx5_ifc_mad_ifc_in_bits."""

    SIZE_BYTES: Final = 0x110
    mad: Final = Field(0x80, 0x800)


class MadIfcOutLayout(Layout):
    """struct mlx5_ifc_mad_ifc_out_bits."""

    SIZE_BYTES: Final = 0x110
    response_mad_packet: Final = Field(0x80, 0x800)


class ManagePagesInLayout(Layout):
    """struct mlx5_ifc_manage_pages_in_bits."""

    SIZE_BYTES: Final = 0x10
    input_num_entries: Final = Field(0x60, 0x20)
    pas: Final = Field(0x80, 0x0)


class ManagePagesOutLayout(Layout):
    """struct mlx5_ifc_manage_pages_out_bits."""

    SIZE_BYTES: Final = 0x10
    output_num_entries: Final = Field(0x40, 0x20)


class MkcLayout(Layout):
    """struct mlx5_ifc_mkc_bits."""

    SIZE_BYTES: Final = 0x40
    free: Final = Field(0x1, 0x1)
    access_mode_4_2: Final = Field(0x3, 0x3)
    a: Final = Field(0x11, 0x1)
    rw: Final = Field(0x12, 0x1)
    rr: Final = Field(0x13, 0x1)
    lw: Final = Field(0x14, 0x1)
    lr: Final = Field(0x15, 0x1)
    access_mode_1_0: Final = Field(0x16, 0x2)
    qpn: Final = Field(0x20, 0x18)
    mkey_7_0: Final = Field(0x38, 0x8)
    length64: Final = Field(0x60, 0x1)
    en_rinval: Final = Field(0x67, 0x1)
    pd: Final = Field(0x68, 0x18)
    start_addr: Final = Field(0x80, 0x40)
    len: Final = Field(0xC0, 0x40)
    translations_octword_size: Final = Field(0x1A0, 0x20)
    log_page_size: Final = Field(0x1DA, 0x6)


class ModifyCqInLayout(Layout):
    """struct mlx5_ifc_modify_cq_in_bits."""

    SIZE_BYTES: Final = 0x110
    cqn: Final = Field(0x48, 0x18)
    modify_field_select_resize_field_select: Final = Field(0x60, 0x20)
    cq_context: Final = Field(0x80, 0x200)
    pas: Final = Field(0x880, 0x0)


class ModifyFlowTableInLayout(Layout):
    """struct mlx5_ifc_modify_flow_table_in_bits."""

    SIZE_BYTES: Final = 0x40
    table_id: Final = Field(0xA8, 0x18)
    flow_table_context: Final = Field(0xC0, 0x140)


class ModifyHcaVportContextInLayout(Layout):
    """struct mlx5_ifc_modify_hca_vport_context_in_bits."""

    SIZE_BYTES: Final = 0x210
    hca_vport_context: Final = Field(0x80, 0x1000)


class ModifyNicVportContextInLayout(Layout):
    """struct mlx5_ifc_modify_nic_vport_context_in_bits."""

    SIZE_BYTES: Final = 0x200
    field_select: Final = Field(0x60, 0x20)
    nic_vport_context: Final = Field(0x800, 0x800)


class ModifyRmpInLayout(Layout):
    """struct mlx5_ifc_modify_rmp_in_bits."""

    SIZE_BYTES: Final = 0x110
    rmpn: Final = Field(0x48, 0x18)
    ctx: Final = Field(0x100, 0x780)


class ModifyRqInLayout(Layout):
    """struct mlx5_ifc_modify_rq_in_bits."""

    SIZE_BYTES: Final = 0x110
    rqn: Final = Field(0x48, 0x18)
    ctx: Final = Field(0x100, 0x780)


class ModifyRqtInLayout(Layout):
    """struct mlx5_ifc_modify_rqt_in_bits."""

    SIZE_BYTES: Final = 0x110
    rqtn: Final = Field(0x48, 0x18)
    ctx: Final = Field(0x100, 0x780)


class ModifySqInLayout(Layout):
    """struct mlx5_ifc_modify_sq_in_bits."""

    SIZE_BYTES: Final = 0x110
    sqn: Final = Field(0x48, 0x18)
    ctx: Final = Field(0x100, 0x780)


class ModifyTirInLayout(Layout):
    """struct mlx5_ifc_modify_tir_in_bits."""

    SIZE_BYTES: Final = 0x110
    tirn: Final = Field(0x48, 0x18)


class NicVportContextLayout(Layout):
    """struct mlx5_ifc_nic_vport_context_bits."""

    SIZE_BYTES: Final = 0x100
    roce_en: Final = Field(0x1F, 0x1)
    mtu: Final = Field(0x130, 0x10)
    system_image_guid: Final = Field(0x140, 0x40)
    port_guid: Final = Field(0x180, 0x40)
    node_guid: Final = Field(0x1C0, 0x40)
    allowed_list_type: Final = Field(0x785, 0x3)
    permanent_address: Final = Field(0x7A0, 0x40)


class OdpCapLayout(Layout):
    """struct mlx5_ifc_odp_cap_bits."""

    SIZE_BYTES: Final = 0x100
    transport_page_fault_scheme_cap: Final = Field(0x0, 0x200)


class OdpPerTransportServiceCapLayout(Layout):
    """struct mlx5_ifc_odp_per_transport_service_cap_bits."""

    SIZE_BYTES: Final = 0x4
    send: Final = Field(0x0, 0x1)
    receive: Final = Field(0x1, 0x1)
    write: Final = Field(0x2, 0x1)
    read: Final = Field(0x3, 0x1)
    atomic: Final = Field(0x4, 0x1)
    srq_receive: Final = Field(0x5, 0x1)


class OdpSchemeCapLayout(Layout):
    """struct mlx5_ifc_odp_scheme_cap_bits."""

    SIZE_BYTES: Final = 0x40
    rc_odp_caps: Final = Field(0x80, 0x20)
    ud_odp_caps: Final = Field(0xC0, 0x20)
    xrc_odp_caps: Final = Field(0xE0, 0x20)


class PageFaultResumeInLayout(Layout):
    """struct mlx5_ifc_page_fault_resume_in_bits."""

    SIZE_BYTES: Final = 0x10
    page_fault_info: Final = Field(0x40, 0x40)


class PaosRegLayout(Layout):
    """struct mlx5_ifc_paos_reg_bits."""

    SIZE_BYTES: Final = 0x10
    admin_status: Final = Field(0x14, 0x4)
    oper_status: Final = Field(0x1C, 0x4)


class PerProtocolNetworkingOffloadCapsLayout(Layout):
    """struct mlx5_ifc_per_protocol_networking_offload_caps_bits."""

    SIZE_BYTES: Final = 0x100
    csum_cap: Final = Field(0x0, 0x1)
    vlan_cap: Final = Field(0x1, 0x1)
    wqe_vlan_insert: Final = Field(0x7, 0x1)
    self_lb_en_modifiable: Final = Field(0x8, 0x1)
    max_lso_cap: Final = Field(0xB, 0x5)
    wqe_inline_mode: Final = Field(0x12, 0x2)
    rss_ind_tbl_cap: Final = Field(0x14, 0x4)
    scatter_fcs: Final = Field(0x19, 0x1)


class PmtuRegLayout(Layout):
    """struct mlx5_ifc_pmtu_reg_bits."""

    SIZE_BYTES: Final = 0x10
    max_mtu: Final = Field(0x20, 0x10)
    admin_mtu: Final = Field(0x40, 0x10)
    oper_mtu: Final = Field(0x60, 0x10)


class PtysRegLayout(Layout):
    """struct mlx5_ifc_ptys_reg_bits."""

    SIZE_BYTES: Final = 0x40
    ext_eth_proto_capability: Final = Field(0x40, 0x20)
    eth_proto_capability: Final = Field(0x60, 0x20)
    ext_eth_proto_admin: Final = Field(0xA0, 0x20)
    eth_proto_admin: Final = Field(0xC0, 0x20)
    ext_eth_proto_oper: Final = Field(0x100, 0x20)
    eth_proto_oper: Final = Field(0x120, 0x20)
    ib_link_width_oper: Final = Field(0x140, 0x10)
    ib_proto_oper: Final = Field(0x150, 0x10)


class PvlcRegLayout(Layout):
    """struct mlx5_ifc_pvlc_reg_bits."""

    SIZE_BYTES: Final = 0x10
    vl_hw_cap: Final = Field(0x3C, 0x4)
    vl_admin: Final = Field(0x5C, 0x4)
    vl_operational: Final = Field(0x7C, 0x4)


class QpcLayout(Layout):
    """struct mlx5_ifc_qpc_bits."""

    SIZE_BYTES: Final = 0xE8
    state: Final = Field(0x0, 0x4)
    st: Final = Field(0x8, 0x8)
    pm_state: Final = Field(0x13, 0x2)
    pd: Final = Field(0x28, 0x18)
    mtu: Final = Field(0x40, 0x3)
    log_msg_max: Final = Field(0x43, 0x5)
    log_rq_size: Final = Field(0x49, 0x4)
    log_rq_stride: Final = Field(0x4D, 0x3)
    no_sq: Final = Field(0x50, 0x1)
    log_sq_size: Final = Field(0x51, 0x4)
    rlky: Final = Field(0x5B, 0x1)
    counter_set_id: Final = Field(0x60, 0x8)
    user_index: Final = Field(0x88, 0x18)
    log_page_size: Final = Field(0xA3, 0x5)
    remote_qpn: Final = Field(0xA8, 0x18)
    primary_address_path: Final = Field(0xC0, 0x160)
    log_sra_max: Final = Field(0x388, 0x3)
    retry_count: Final = Field(0x38D, 0x3)
    rnr_retry: Final = Field(0x390, 0x3)
    next_send_psn: Final = Field(0x3C8, 0x18)
    cqn_snd: Final = Field(0x3E8, 0x18)
    log_rra_max: Final = Field(0x488, 0x3)
    rre: Final = Field(0x490, 0x1)
    rwe: Final = Field(0x491, 0x1)
    rae: Final = Field(0x492, 0x1)
    page_offset: Final = Field(0x494, 0x6)
    min_rnr_nak: Final = Field(0x4A3, 0x5)
    next_rcv_psn: Final = Field(0x4A8, 0x18)
    xrcd: Final = Field(0x4C8, 0x18)
    cqn_rcv: Final = Field(0x4E8, 0x18)
    dbr_addr: Final = Field(0x500, 0x40)
    q_key: Final = Field(0x540, 0x20)
    rq_type: Final = Field(0x565, 0x3)
    srqn_rmpn_xrqn: Final = Field(0x568, 0x18)
    hw_sq_wqebb_counter: Final = Field(0x5A0, 0x10)
    sw_sq_wqebb_counter: Final = Field(0x5B0, 0x10)


class QueryAdapterOutLayout(Layout):
    """struct mlx5_ifc_query_adapter_out_bits."""

    SIZE_BYTES: Final = 0x110
    query_adapter_struct: Final = Field(0x80, 0x800)


class QueryAdapterParamBlockLayout(Layout):
    """struct mlx5_ifc_query_adapter_param_block_bits."""

    SIZE_BYTES: Final = 0x100
    ieee_vendor_id: Final = Field(0xC8, 0x18)
    vsd_contd_psid: Final = Field(0x780, 0x80)


class QueryCqInLayout(Layout):
    """struct mlx5_ifc_query_cq_in_bits."""

    SIZE_BYTES: Final = 0x10
    cqn: Final = Field(0x48, 0x18)


class QueryCqOutLayout(Layout):
    """struct mlx5_ifc_query_cq_out_bits."""

    SIZE_BYTES: Final = 0x110
    cq_context: Final = Field(0x80, 0x200)


class QueryEqInLayout(Layout):
    """struct mlx5_ifc_query_eq_in_bits."""

    SIZE_BYTES: Final = 0x10
    eq_number: Final = Field(0x58, 0x8)


class QueryEqOutLayout(Layout):
    """struct mlx5_ifc_query_eq_out_bits."""

    SIZE_BYTES: Final = 0x110
    eq_context_entry: Final = Field(0x80, 0x200)


class QueryHcaCapOutLayout(Layout):
    """struct mlx5_ifc_query_hca_cap_out_bits."""

    SIZE_BYTES: Final = 0x1010
    capability: Final = Field(0x80, 0x8000)


class QueryHcaVportContextOutLayout(Layout):
    """struct mlx5_ifc_query_hca_vport_context_out_bits."""

    SIZE_BYTES: Final = 0x210
    hca_vport_context: Final = Field(0x80, 0x1000)


class QueryHcaVportGidInLayout(Layout):
    """struct mlx5_ifc_query_hca_vport_gid_in_bits."""

    SIZE_BYTES: Final = 0x10
    gid_index: Final = Field(0x70, 0x10)


class QueryHcaVportGidOutLayout(Layout):
    """struct mlx5_ifc_query_hca_vport_gid_out_bits."""

    SIZE_BYTES: Final = 0x10
    gids_num: Final = Field(0x60, 0x10)


class QueryHcaVportPkeyInLayout(Layout):
    """struct mlx5_ifc_query_hca_vport_pkey_in_bits."""

    SIZE_BYTES: Final = 0x10
    pkey_index: Final = Field(0x70, 0x10)


class QueryHcaVportPkeyOutLayout(Layout):
    """struct mlx5_ifc_query_hca_vport_pkey_out_bits."""

    SIZE_BYTES: Final = 0x10


class QueryIssiOutLayout(Layout):
    """struct mlx5_ifc_query_issi_out_bits."""

    SIZE_BYTES: Final = 0x70
    supported_issi_dw0: Final = Field(0x360, 0x20)


class QueryMkeyInLayout(Layout):
    """struct mlx5_ifc_query_mkey_in_bits."""

    SIZE_BYTES: Final = 0x10
    mkey_index: Final = Field(0x48, 0x18)


class QueryMkeyOutLayout(Layout):
    """struct mlx5_ifc_query_mkey_out_bits."""

    SIZE_BYTES: Final = 0x130
    memory_key_mkey_entry: Final = Field(0x80, 0x200)
    bsf0_klm0_pas_mtt0_1: Final = Field(0x880, 0x80)


class QueryNicVportContextInLayout(Layout):
    """struct mlx5_ifc_query_nic_vport_context_in_bits."""

    SIZE_BYTES: Final = 0x10
    allowed_list_type: Final = Field(0x65, 0x3)


class QueryNicVportContextOutLayout(Layout):
    """struct mlx5_ifc_query_nic_vport_context_out_bits."""

    SIZE_BYTES: Final = 0x110
    nic_vport_context: Final = Field(0x80, 0x800)


class QueryPagesOutLayout(Layout):
    """struct mlx5_ifc_query_pages_out_bits."""

    SIZE_BYTES: Final = 0x10
    num_pages: Final = Field(0x60, 0x20)


class QueryQCounterOutLayout(Layout):
    """struct mlx5_ifc_query_q_counter_out_bits."""

    SIZE_BYTES: Final = 0x100


class QueryQpInLayout(Layout):
    """struct mlx5_ifc_query_qp_in_bits."""

    SIZE_BYTES: Final = 0x10
    qpn: Final = Field(0x48, 0x18)


class QueryQpOutLayout(Layout):
    """struct mlx5_ifc_query_qp_out_bits."""

    SIZE_BYTES: Final = 0x1D0
    qpc: Final = Field(0xC0, 0x740)


class QueryRmpInLayout(Layout):
    """struct mlx5_ifc_query_rmp_in_bits."""

    SIZE_BYTES: Final = 0x10
    rmpn: Final = Field(0x48, 0x18)


class QueryRmpOutLayout(Layout):
    """struct mlx5_ifc_query_rmp_out_bits."""

    SIZE_BYTES: Final = 0x110
    rmp_context: Final = Field(0x100, 0x780)


class QueryRoceAddressInLayout(Layout):
    """struct mlx5_ifc_query_roce_address_in_bits."""

    SIZE_BYTES: Final = 0x10
    roce_address_index: Final = Field(0x40, 0x10)


class QueryRoceAddressOutLayout(Layout):
    """struct mlx5_ifc_query_roce_address_out_bits."""

    SIZE_BYTES: Final = 0x30
    roce_address: Final = Field(0x80, 0x100)


class QueryRqInLayout(Layout):
    """struct mlx5_ifc_query_rq_in_bits."""

    SIZE_BYTES: Final = 0x10
    rqn: Final = Field(0x48, 0x18)


class QueryRqOutLayout(Layout):
    """struct mlx5_ifc_query_rq_out_bits."""

    SIZE_BYTES: Final = 0x110
    rq_context: Final = Field(0x100, 0x780)


class QuerySpecialContextsOutLayout(Layout):
    """struct mlx5_ifc_query_special_contexts_out_bits."""

    SIZE_BYTES: Final = 0x20
    resd_lkey: Final = Field(0x60, 0x20)
    null_mkey: Final = Field(0x80, 0x20)
    terminate_scatter_list_mkey: Final = Field(0xA0, 0x20)


class QuerySqInLayout(Layout):
    """struct mlx5_ifc_query_sq_in_bits."""

    SIZE_BYTES: Final = 0x10
    sqn: Final = Field(0x48, 0x18)


class QuerySqOutLayout(Layout):
    """struct mlx5_ifc_query_sq_out_bits."""

    SIZE_BYTES: Final = 0x110
    sq_context: Final = Field(0x100, 0x780)


class QueryVportCounterOutLayout(Layout):
    """struct mlx5_ifc_query_vport_counter_out_bits."""

    SIZE_BYTES: Final = 0x210
    received_ib_unicast: Final = Field(0x180, 0x80)
    transmitted_ib_unicast: Final = Field(0x200, 0x80)


class QueryVportStateOutLayout(Layout):
    """struct mlx5_ifc_query_vport_state_out_bits."""

    SIZE_BYTES: Final = 0x10
    admin_state: Final = Field(0x78, 0x4)
    state: Final = Field(0x7C, 0x4)


class QueryXrcSrqInLayout(Layout):
    """struct mlx5_ifc_query_xrc_srq_in_bits."""

    SIZE_BYTES: Final = 0x10
    xrc_srqn: Final = Field(0x48, 0x18)


class QueryXrcSrqOutLayout(Layout):
    """struct mlx5_ifc_query_xrc_srq_out_bits."""

    SIZE_BYTES: Final = 0x110
    xrc_srq_context_entry: Final = Field(0x80, 0x200)


class RmpcLayout(Layout):
    """struct mlx5_ifc_rmpc_bits."""

    SIZE_BYTES: Final = 0xF0
    state: Final = Field(0x8, 0x4)
    wq: Final = Field(0x180, 0x600)


class RoceAddrLayoutLayout(Layout):
    """struct mlx5_ifc_roce_addr_layout_bits."""

    SIZE_BYTES: Final = 0x20
    source_l3_address: Final = Field(0x0, 0x80)
    source_mac_47_32: Final = Field(0x90, 0x10)
    roce_l3_type: Final = Field(0xD4, 0x4)
    roce_version: Final = Field(0xD8, 0x8)


class RoceCapLayout(Layout):
    """struct mlx5_ifc_roce_cap_bits."""

    SIZE_BYTES: Final = 0x100
    l3_type: Final = Field(0x8C, 0x4)
    roce_version: Final = Field(0x98, 0x8)
    r_roce_dest_udp_port: Final = Field(0xB0, 0x10)
    r_roce_max_src_udp_port: Final = Field(0xC0, 0x10)
    r_roce_min_src_udp_port: Final = Field(0xD0, 0x10)
    roce_address_table_size: Final = Field(0xF0, 0x10)


class RqcLayout(Layout):
    """struct mlx5_ifc_rqc_bits."""

    SIZE_BYTES: Final = 0xF0
    state: Final = Field(0x8, 0x4)
    cqn: Final = Field(0x48, 0x18)
    wq: Final = Field(0x180, 0x600)


class RqtcLayout(Layout):
    """struct mlx5_ifc_rqtc_bits."""

    SIZE_BYTES: Final = 0xF0
    rqt_actual_size: Final = Field(0xD0, 0x10)
    rq_num: Final = Field(0x780, 0x0)


class Rst2initQpInLayout(Layout):
    """struct mlx5_ifc_rst2init_qp_in_bits."""

    SIZE_BYTES: Final = 0x110
    qpn: Final = Field(0x48, 0x18)
    opt_param_mask: Final = Field(0x80, 0x20)
    qpc: Final = Field(0xC0, 0x740)


class SetFlowTableRootInLayout(Layout):
    """struct mlx5_ifc_set_flow_table_root_in_bits."""

    SIZE_BYTES: Final = 0x40
    table_type: Final = Field(0x80, 0x8)
    table_id: Final = Field(0xA8, 0x18)


class SetFteInLayout(Layout):
    """struct mlx5_ifc_set_fte_in_bits."""

    SIZE_BYTES: Final = 0x340
    table_id: Final = Field(0xA8, 0x18)
    flow_index: Final = Field(0x100, 0x20)
    flow_context: Final = Field(0x200, 0x1800)


class SetHcaCapInLayout(Layout):
    """struct mlx5_ifc_set_hca_cap_in_bits."""

    SIZE_BYTES: Final = 0x1010
    capability: Final = Field(0x80, 0x8000)


class SetRoceAddressInLayout(Layout):
    """struct mlx5_ifc_set_roce_address_in_bits."""

    SIZE_BYTES: Final = 0x30
    roce_address_index: Final = Field(0x40, 0x10)
    roce_address: Final = Field(0x80, 0x100)


class SqcLayout(Layout):
    """struct mlx5_ifc_sqc_bits."""

    SIZE_BYTES: Final = 0xF0
    state: Final = Field(0x8, 0x4)
    cqn: Final = Field(0x48, 0x18)
    tis_num_0: Final = Field(0x168, 0x18)
    wq: Final = Field(0x180, 0x600)


class TircLayout(Layout):
    """struct mlx5_ifc_tirc_bits."""

    SIZE_BYTES: Final = 0xF0
    disp_type: Final = Field(0x20, 0x4)
    inline_rqn: Final = Field(0xE8, 0x18)
    indirect_table: Final = Field(0x108, 0x18)
    transport_domain: Final = Field(0x128, 0x18)


class TiscLayout(Layout):
    """struct mlx5_ifc_tisc_bits."""

    SIZE_BYTES: Final = 0xA0
    transport_domain: Final = Field(0x128, 0x18)


class TrafficCounterLayout(Layout):
    """struct mlx5_ifc_traffic_counter_bits."""

    SIZE_BYTES: Final = 0x10
    packets: Final = Field(0x0, 0x40)
    octets: Final = Field(0x40, 0x40)


class TransPageFaultInfoLayout(Layout):
    """struct mlx5_ifc_trans_page_fault_info_bits."""

    SIZE_BYTES: Final = 0x8
    error: Final = Field(0x0, 0x1)
    fault_token: Final = Field(0x28, 0x18)


class WqLayout(Layout):
    """struct mlx5_ifc_wq_bits."""

    SIZE_BYTES: Final = 0xC0
    wq_type: Final = Field(0x0, 0x4)
    page_offset: Final = Field(0x2B, 0x5)
    lwm: Final = Field(0x30, 0x10)
    pd: Final = Field(0x48, 0x18)
    dbr_addr: Final = Field(0x80, 0x40)
    log_wq_stride: Final = Field(0x10C, 0x4)
    log_wq_pg_sz: Final = Field(0x113, 0x5)
    log_wq_sz: Final = Field(0x11B, 0x5)
    pas: Final = Field(0x600, 0x0)


class XrcSrqcLayout(Layout):
    """struct mlx5_ifc_xrc_srqc_bits."""

    SIZE_BYTES: Final = 0x40
    log_xrc_srq_size: Final = Field(0x4, 0x4)
    log_rq_stride: Final = Field(0x25, 0x3)
    xrcd: Final = Field(0x28, 0x18)
    page_offset: Final = Field(0x40, 0x6)
    cqn: Final = Field(0x48, 0x18)
    log_page_size: Final = Field(0x82, 0x6)
    user_index: Final = Field(0x88, 0x18)
    pd: Final = Field(0xC8, 0x18)
    lwm: Final = Field(0xE0, 0x10)
    db_record_addr_h: Final = Field(0x140, 0x20)
    db_record_addr_l: Final = Field(0x160, 0x1E)
