"""`linux-p2pdma`: what the kernel checks for a BAR exporter."""

from __future__ import annotations

import msgspec
import pytest
from records import GPU_BDF, NIC_BDF, hca, no, pair

from gdrstorm.errors import UsageError
from gdrstorm.model.admission import Answer, Decision, Finding, MappingType, Request, Window
from gdrstorm.model.inventory import Inventory, known
from gdrstorm.policy import LINUX_POLICY, answer_needs, find_predicate, judge, judge_pair
from gdrstorm.policy.predicates import PREDICATES

YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN


def ask(
    there: Inventory, window: Window | None = None, bar: int | None = None
) -> dict[str, Finding]:
    request = Request(
        policy=LINUX_POLICY,
        exporter=GPU_BDF,
        importer="mlx5_0",
        mapping=MappingType.BAR,
        window=window,
        bar=bar,
    )
    return {f.predicate: f for f in judge(there, request).findings}


def test_admitted_with_every_domain() -> None:
    for domain in ("identity", "DMA", "DMA-FQ", None):
        assert (
            judge_pair(pair(domain=domain), LINUX_POLICY, GPU_BDF, NIC_BDF).decision
            is Decision.ADMIT
        )


@pytest.mark.parametrize(
    ("window", "bar", "answers"),
    [
        (Window(0, 4096), None, (YES, YES)),
        (Window(0, 16 << 30), 1, (YES, YES)),
        (Window(4096, 16 << 30), 1, (YES, NO)),
        (Window(0, 32 << 20), 0, (YES, NO)),
        (Window(0, 0), None, (YES, NO)),
        (Window(100, 4096), None, (YES, NO)),
        (Window(0, 4095), None, (YES, NO)),
        (Window(2**64 - 4096, 8192), None, (YES, NO)),
        (Window(0, 4096), 5, (NO, UNKNOWN)),
    ],
)
def test_bar_and_range(window: Window, bar: int | None, answers: tuple[Answer, Answer]) -> None:
    got = ask(pair(), window, bar)
    assert (got["exporter-bar"].answer, got["range-in-bar"].answer) == answers


@pytest.mark.parametrize(
    ("domain", "bits", "want"),
    [
        ("identity", 32, NO),
        ("identity", 64, YES),
        ("DMA-FQ", 32, YES),
        ("DMA", 32, YES),
        (None, 32, NO),
    ],
)
def test_the_mask_matters_without_translation_only(
    domain: str | None, bits: int, want: Answer
) -> None:
    assert ask(pair(domain=domain, mask_bits=known(bits)))["importer-dma-mask"].answer is want


def test_an_unreadable_mask_is_unknown() -> None:
    assert ask(pair(mask_bits=no()))["importer-dma-mask"].answer is UNKNOWN


@pytest.mark.parametrize(
    ("options", "name"),
    [({"VFIO_PCI_DMABUF": "y"}, "kernel-p2pdma"), ({"PCI_P2PDMA": "y"}, "kernel-vfio-dmabuf")],
)
def test_kernel_options(options: dict[str, str], name: str) -> None:
    assert ask(pair(options=options))[name].answer is NO


def test_without_a_group_vfio_cannot_open_the_exporter() -> None:
    there = pair()
    devices = tuple(msgspec.structs.replace(d, iommu_group=known(-1)) for d in there.pci.get(()))
    got = ask(msgspec.structs.replace(there, pci=known(devices)))
    assert got["exporter-iommu-group"].answer is NO


def test_needs_take_the_best_answer_and_never_silence() -> None:
    good = judge_pair(pair(), LINUX_POLICY, GPU_BDF, NIC_BDF)
    bad = judge_pair(pair(hcas=(hca(dmabuf=known(False)),)), LINUX_POLICY, GPU_BDF, NIC_BDF)
    both = answer_needs([bad, good], ["importer-dmabuf-mr", "option-on"])
    assert [f.answer for f in both] == [YES, UNKNOWN]
    assert answer_needs([bad], ["importer-dmabuf-mr"])[0].answer is NO
    assert answer_needs([], ["p2pdma-distance"])[0].answer is UNKNOWN


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="no such predicate: nonsense"):
        answer_needs([], ["nonsense"])
    with pytest.raises(UsageError, match="no such exporter"):
        judge_pair(pair(), LINUX_POLICY, "0000:ff:00.0", NIC_BDF)
    with pytest.raises(UsageError, match="no such policy"):
        judge_pair(pair(), "wishful", GPU_BDF, NIC_BDF)
    with pytest.raises(UsageError, match="software device"):
        judge_pair(pair(hcas=(hca("rxe0", ""),)), LINUX_POLICY, GPU_BDF, "rxe0")


def test_the_catalogue_has_every_predicate_that_is_answered_and_no_other() -> None:
    asked = {
        f.predicate
        for policy in ("nvidia-dmabuf-p2p", "nvidia-dmabuf-default", LINUX_POLICY)
        for f in judge_pair(pair(), policy, GPU_BDF, NIC_BDF).findings
    }
    assert asked | {"modules-fresh"} == {p.name for p in PREDICATES}
    for predicate in PREDICATES:
        assert find_predicate(predicate.name).why and predicate.source
