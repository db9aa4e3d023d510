"""The policy `linux-p2pdma`: what the kernel itself checks for a BAR exporter such as VFIO.

Facts of Linux 7.3.4: drivers/vfio/pci/vfio_pci_dmabuf.c, drivers/dma-buf/dma-buf-mapping.c,
kernel/dma/direct.c. Translated domains are fine here: each mapping gets an address of its own.
"""

from __future__ import annotations

from gdrstorm.model.admission import Answer, Finding, MapKind, P2pRoute, Request, Window
from gdrstorm.model.inventory import Bar, Hca, Inventory, PciDevice, Probe, Unknown, Why, known
from gdrstorm.policy.common import (
    NO_IMPORTER,
    answer_distance,
    answer_dmabuf_mr,
    answer_option,
    make_finding,
    make_unknown,
    read_domain,
)
from gdrstorm.policy.ranges import is_covered, is_inside

LINUX_POLICY = "linux-p2pdma"
_PAGE = 4096


def find_bar(device: PciDevice, index: int | None) -> Probe[Bar]:
    """The BAR that is asked for, or the largest memory BAR."""
    if device.bars.value is None:
        return Probe(unknown=device.bars.unknown)
    memory = [bar for bar in device.bars.value if bar.is_memory and bar.size > 0]
    if index is not None:
        memory = [bar for bar in memory if bar.index == index]
    if not memory:
        wanted = "memory BAR" if index is None else f"memory BAR {index}"
        return Probe(unknown=Unknown(Why.NO_DEVICE, f"{device.bdf} has no {wanted}"))
    return known(max(memory, key=lambda bar: (bar.size, -bar.index)))


def _answer_bar(bar: Probe[Bar]) -> Finding:
    if bar.unknown and bar.unknown.why is Why.NO_DEVICE:
        return Finding(
            "exporter-bar", Answer.NO, bar.unknown.detail, "name another exporter or BAR"
        )
    if bar.value is None:
        return make_unknown("exporter-bar", bar.unknown)
    text = f"BAR {bar.value.index} [{bar.value.start:#x}, {bar.value.last + 1:#x})"
    return Finding("exporter-bar", Answer.YES, text)


def _answer_range(bar: Probe[Bar], window: Window | None) -> Finding:
    name = "range-in-bar"
    if bar.value is None:
        return make_unknown(name, bar.unknown)
    if window is None:
        fact = known(bar.value.size >= _PAGE)
        return make_finding(
            name, fact, f"any pages of {bar.value.size:#x} bytes", "name another BAR"
        )
    aligned = window.start % _PAGE == 0 and window.size % _PAGE == 0
    inside = is_inside(window, Window(0, bar.value.size))
    text = f"[{window.start:#x}, {window.start + window.size:#x}) in {bar.value.size:#x} bytes"
    return make_finding(
        name, known(aligned and inside), text, "align to 4 KiB, stay inside the BAR"
    )


def _answer_group(device: PciDevice) -> Finding:
    group = device.iommu_group
    fact = Probe[bool](unknown=group.unknown) if group.value is None else known(group.value >= 0)
    text = (
        f"{device.bdf}: IOMMU group {group.get(-1)}"
        if group.get(-1) >= 0
        else f"{device.bdf}: no group"
    )
    remedy = "enable the IOMMU in firmware and on the kernel command line"
    return make_finding("exporter-iommu-group", fact, text, remedy)


def _answer_mask(
    inventory: Inventory,
    window: Window | None,
    bar: Probe[Bar],
    route: P2pRoute | None,
    importer: PciDevice | None,
) -> Finding:
    """Only an untranslated address through the host bridge is compared with the mask."""
    name = "importer-dma-mask"
    if importer is None or route is None:
        return make_unknown(name, NO_IMPORTER)
    domain, bits = read_domain(inventory, importer), importer.dma_mask_bits
    if route.kind.value is MapKind.BUS_ADDR:
        return Finding(name, Answer.YES, "mapped by bus address: the kernel compares no mask")
    if domain.value in {"DMA", "DMA-FQ"}:
        return Finding(
            name, Answer.YES, f"domain {domain.value}: the mapping gets a reachable address"
        )
    if bits.value is None or bar.value is None:
        return make_unknown(name, bits.unknown or bar.unknown)
    whole = Window(0, bar.value.size)
    part = whole if window is None else window
    text = f"{bits.value} bits; BAR at {bar.value.start:#x}, {part.size:#x} bytes"
    covered = is_covered(Window(bar.value.start + part.start, part.size), bits.value)
    if domain.unknown and not covered:
        return make_unknown(name, domain.unknown, text)
    remedy = "place BARs lower in firmware, or use a translated IOMMU domain"
    return make_finding(name, known(covered), text, remedy)


def judge_linux(
    inventory: Inventory,
    request: Request,
    devices: tuple[PciDevice, PciDevice | None],
    route: P2pRoute | None,
    hca: Hca | None,
) -> tuple[Finding, ...]:
    """Predicate by predicate for (exporter, importer)."""
    exporter, importer = devices
    bar = find_bar(exporter, request.bar)
    return (
        answer_option(inventory, "kernel-p2pdma", "PCI_P2PDMA"),
        answer_option(inventory, "kernel-vfio-dmabuf", "VFIO_PCI_DMABUF"),
        _answer_group(exporter),
        _answer_bar(bar),
        _answer_range(bar, request.window),
        answer_distance(route),
        _answer_mask(inventory, request.window, bar, route, importer),
        answer_dmabuf_mr(hca, importer.bdf if importer else ""),
    )
