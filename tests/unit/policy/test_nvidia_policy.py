"""The truth table of `nvidia-dmabuf-p2p`, and the options in both generations."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import GPU_BDF, NIC_BDF, driver, gpu, hca, no, pair

from gdrstorm.model.admission import (
    Admission,
    Answer,
    Decision,
    MappingType,
    Request,
    Window,
)
from gdrstorm.model.inventory import Inventory, StaticBar1, known
from gdrstorm.policy import DEFAULT_POLICY, P2P_POLICY, judge, judge_pair

YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN

# Each predicate by the facts that make it yes, no or unknown: changes to driver, GPU, pair, request.
STATES: dict[str, dict[Answer, dict[str, object]]] = {
    "driver-open": {YES: {}, NO: {"flavour": "proprietary"}, UNKNOWN: {"flavour": None}},
    "option-on": {
        YES: {},
        NO: {"params": {"EnableDmaBufP2P": "0"}},
        UNKNOWN: {"params": {"EnableDmaBufP2P": "perhaps"}},
    },
    "mapping-force-pcie": {YES: {}, NO: {"mapping": MappingType.DEFAULT}},
    "gpu-not-coherent": {YES: {}, NO: {"coherent": known(True)}, UNKNOWN: {"coherent": no()}},
    "mig-off": {YES: {}, NO: {"mig": known(True)}, UNKNOWN: {"mig": no()}},
    "importer-identity-domain": {YES: {}, NO: {"domain": "DMA-FQ"}, UNKNOWN: {"domain": "unknown"}},
    "importer-dma-mask": {YES: {}, NO: {"mask_bits": known(32)}, UNKNOWN: {"mask_bits": no()}},
    "p2pdma-distance": {YES: {}, NO: {"cpu": ("GenuineIntel", 6)}, UNKNOWN: {"cpu": None}},
    "kernel-p2pdma": {YES: {}, NO: {"options": {}}},
    "importer-dmabuf-mr": {YES: {}, NO: {"dmabuf": known(False)}, UNKNOWN: {"dmabuf": no()}},
    "range-in-static-bar1": {YES: {}, NO: {"window": Window(0, 4096)}},
}
INSIDE = Window(0x20000000, 4096)


def ask(states: dict[str, Answer]) -> Admission:
    """The admission of a pair whose predicates are as `states` say."""
    changes: dict[str, object] = {}
    for name, answer in states.items():
        changes |= STATES[name][answer]
    window = changes.pop("window", INSIDE)
    mapping = changes.pop("mapping", MappingType.FORCE_PCIE)
    nv = driver(changes.pop("flavour", "open"), changes.pop("params", None))  # type: ignore[arg-type]
    state = {k: changes.pop(k) for k in ("coherent", "mig") if k in changes}
    device = hca(dmabuf=changes.pop("dmabuf", None))  # type: ignore[arg-type]
    there = pair(nvidia=nv, gpus=(gpu(**state),), hcas=(device,), **changes)  # type: ignore[arg-type]
    return judge(
        there,
        Request(
            policy=P2P_POLICY, exporter=GPU_BDF, importer=NIC_BDF, mapping=mapping, window=window
        ),
    )  # type: ignore[arg-type]


def expected(states: dict[str, Answer]) -> Decision:
    values = set(states.values())
    if NO in values:
        return Decision.REJECT
    return Decision.UNKNOWN if UNKNOWN in values else Decision.ADMIT


def assert_table_row(states: dict[str, Answer]) -> None:
    admission = ask(states)
    got = {f.predicate: f.answer for f in admission.findings if not f.is_advisory}
    assert {name: got[name] for name in states} == states
    assert admission.decision is expected(states)
    assert (admission.decision is Decision.ADMIT) == (not admission.reasons)


def test_every_combination_of_yes_and_no() -> None:
    names = list(STATES)
    for values in itertools.product((YES, NO), repeat=len(names)):
        assert_table_row(dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("open_one", [n for n, s in STATES.items() if UNKNOWN in s])
def test_one_unknown_never_admits_whatever_the_rest_says(open_one: str) -> None:
    rest = [n for n in STATES if n != open_one]
    for values in itertools.product((YES, NO), repeat=len(rest)):
        states = dict(zip(rest, values, strict=True)) | {open_one: UNKNOWN}
        assert_table_row(states)


@given(st.fixed_dictionaries({n: st.sampled_from(sorted(s, key=str)) for n, s in STATES.items()}))
@settings(max_examples=400)
def test_any_mixture(states: dict[str, Answer]) -> None:
    assert_table_row(states)


def test_every_predicate_of_the_policy_is_in_the_table() -> None:
    there = judge_pair(pair(), P2P_POLICY, GPU_BDF, NIC_BDF)
    names = {f.predicate for f in there.findings if not f.is_advisory}
    assert names == set(STATES) | {"static-bar1"}


@pytest.mark.parametrize(
    ("static", "window", "answers"),
    [
        (StaticBar1(True, True, 0x20000000, 0x10000), None, (YES, YES)),
        (StaticBar1(False, True, 0x20000000, 0x10000), None, (NO, NO)),
        (StaticBar1(True, True, 0x20000000, 0), None, (NO, NO)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(0x20000000, 0x10000), (YES, YES)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(0x2000F000, 0x1000), (YES, YES)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(0x2000F000, 0x2000), (YES, NO)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(0x1FFFF000, 0x2000), (YES, NO)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(0x20010000, 0x1000), (YES, NO)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(0x20000000, 0), (YES, NO)),
        (StaticBar1(True, True, 0x20000000, 0x10000), Window(2**64 - 0x1000, 0x2000), (YES, NO)),
        (StaticBar1(False, True, 0x20000000, 0x10000), Window(0x20000000, 0x1000), (NO, NO)),
        (None, Window(0x20000000, 0x1000), (UNKNOWN, UNKNOWN)),
        (None, Window(0x20000000, 0), (UNKNOWN, NO)),
    ],
)
def test_static_bar1_and_range(
    static: StaticBar1 | None, window: Window | None, answers: tuple[Answer, Answer]
) -> None:
    there = pair(gpus=(gpu(static_bar1=no() if static is None else known(static)),))
    request = Request(
        policy=P2P_POLICY,
        exporter=GPU_BDF,
        importer="mlx5_0",
        mapping=MappingType.FORCE_PCIE,
        window=window,
    )
    got = {f.predicate: f.answer for f in judge(there, request).findings}
    assert (got["static-bar1"], got["range-in-static-bar1"]) == answers


def option(there: Inventory) -> Answer:
    admission = judge_pair(there, P2P_POLICY, GPU_BDF, NIC_BDF)
    return next(f.answer for f in admission.findings if f.predicate == "option-on")


@pytest.mark.parametrize(
    ("params", "dwords", "want"),
    [
        ({}, {}, NO),
        ({"ExperimentalDmaBufP2P": "0"}, {}, NO),
        ({"ExperimentalDmaBufP2P": "1"}, {}, YES),
        ({"ExperimentalDmaBufP2P": "0"}, {"ExperimentalDmaBufP2P": "1"}, UNKNOWN),
        ({"ExperimentalDmaBufP2P": "1"}, {"ExperimentalDmaBufP2P": "1"}, YES),
        ({}, {"ExperimentalDmaBufP2P": "1"}, NO),
        ({"EnableDmaBufP2P": "1"}, {}, YES),
        ({"EnableDmaBufP2P": "0"}, {}, NO),
        ({"EnableDmaBufP2P": "0x1"}, {}, YES),
        ({"EnableDmaBufP2P": "0", "ExperimentalDmaBufP2P": "1"}, {}, NO),
        ({"EnableDmaBufP2P": "1"}, {"ExperimentalDmaBufP2P": "0"}, YES),
        ({"EnablePcieP2P": "1"}, {}, NO),
        ({"EnableDmaBufP2P": "1", "EnablePcieP2P": "0"}, {}, YES),
        ({"EnableDmaBufP2P": "on"}, {}, UNKNOWN),
    ],
)
def test_both_generations_of_the_option(
    params: dict[str, str], dwords: dict[str, str], want: Answer
) -> None:
    assert option(pair(nvidia=driver("open", params, dwords))) is want


def test_unreadable_parameters_are_unknown() -> None:
    nothing = msgspec.structs.replace(driver(), params=no())
    assert option(pair(nvidia=nothing)) is UNKNOWN


@pytest.mark.parametrize(
    ("domain", "want"),
    [
        ("identity", YES),
        ("DMA", NO),
        ("DMA-FQ", NO),
        ("blocked", NO),
        (None, NO),
        ("unknown", UNKNOWN),
    ],
)
def test_no_domain_is_refused_like_a_translated_one(domain: str | None, want: Answer) -> None:
    admission = judge_pair(pair(domain=domain), P2P_POLICY, GPU_BDF, NIC_BDF)
    got = next(f for f in admission.findings if f.predicate == "importer-identity-domain")
    assert got.answer is want
    assert want is not NO or "iommu=pt" in got.remedy


@pytest.mark.parametrize(
    ("coherent", "params", "want"),
    [
        (known(False), {"RmGpuDirectRdmaForceSPA": "1"}, NO),
        (known(True), {"RmGpuDirectRdmaForceSPA": "1"}, YES),
        (known(False), {"RmGpuDirectRdmaForceSPA": "0"}, YES),
        (known(False), {}, YES),
        (no(), {"RmGpuDirectRdmaForceSPA": "1"}, NO),
    ],
)
def test_force_spa_belongs_to_coherent_gpus(
    coherent: object, params: dict[str, str], want: Answer
) -> None:
    there = pair(nvidia=driver("open", {}, params), gpus=(gpu(coherent=coherent),))
    findings = judge_pair(there, P2P_POLICY, GPU_BDF, NIC_BDF).findings
    got = next(f for f in findings if f.predicate == "force-spa")
    assert (got.answer, got.is_advisory) == (want, True)


def test_a_coherent_gpu_keeps_the_stock_path() -> None:
    there = pair(gpus=(gpu(coherent=known(True)),))
    assert judge_pair(there, P2P_POLICY, GPU_BDF, NIC_BDF).decision is Decision.REJECT
    assert judge_pair(there, DEFAULT_POLICY, GPU_BDF, NIC_BDF).decision is Decision.ADMIT


@pytest.mark.parametrize(
    ("override", "want"), [("1", YES), ("2", NO), ("0", UNKNOWN), (None, UNKNOWN)]
)
def test_stock_topology_override(override: str | None, want: Answer) -> None:
    params = {} if override is None else {"GrdmaPciTopoCheckOverride": override}
    findings = judge_pair(
        pair(nvidia=driver("open", params)), DEFAULT_POLICY, GPU_BDF, NIC_BDF
    ).findings
    assert next(f.answer for f in findings if f.predicate == "grdma-topology") is want


def test_a_geforce_is_told_about_cuda_and_still_admitted() -> None:
    card = msgspec.structs.replace(gpu(), name=known("NVIDIA GeForce RTX 5060 Ti"))
    admission = judge_pair(pair(gpus=(card,)), P2P_POLICY, GPU_BDF, NIC_BDF)
    cuda = next(f for f in admission.findings if f.predicate == "cuda-userspace")
    assert (admission.decision, cuda.answer) == (Decision.ADMIT, UNKNOWN)


def test_the_default_off_rejection() -> None:
    off = pair(nvidia=driver("open", {"ExperimentalDmaBufP2P": "0"}))
    admission = judge_pair(off, P2P_POLICY, GPU_BDF, NIC_BDF)
    assert [f.predicate for f in admission.reasons] == ["option-on"]
    assert "NVreg_ExperimentalDmaBufP2P=1" in admission.reasons[0].remedy


@pytest.mark.parametrize("policy", [P2P_POLICY, DEFAULT_POLICY, "linux-p2pdma"])
def test_an_exporter_alone_is_never_admitted(policy: str) -> None:
    admission = judge_pair(pair(), policy, GPU_BDF, "")
    assert admission.decision is Decision.UNKNOWN
    assert (admission.importer, admission.path, admission.route) == ("", None, None)
    of_importer = {
        "importer-dma-mask",
        "p2pdma-distance",
        "importer-dmabuf-mr",
        "importer-identity-domain",
    }
    for finding in admission.findings:
        if finding.predicate in of_importer:
            assert finding.answer is UNKNOWN and "no RDMA device" in finding.evidence
    off = pair(nvidia=driver("proprietary", {}))
    want = Decision.UNKNOWN if policy == "linux-p2pdma" else Decision.REJECT
    assert judge_pair(off, policy, GPU_BDF, "").decision is want
