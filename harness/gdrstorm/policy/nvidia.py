"""Two policies of the NVIDIA exporter over an Inventory: FORCE_PCIE behind the option, and default.

`nvidia-dmabuf-p2p` is the draft change: fail-closed admission of non-coherent FORCE_PCIE exports
(its policy headers, read for facts). `nvidia-dmabuf-default` is what the stock driver does with the
default mapping (kernel-open/nvidia/nv-dmabuf.c and nv-pci.c). Facts are gathered first and judged
by functions that see nothing else.
"""

from __future__ import annotations

import msgspec

from gdrstorm.model.admission import (
    Answer,
    Finding,
    MappingType,
    P2pRoute,
    PairPath,
    Request,
    Window,
)
from gdrstorm.model.inventory import (
    Bar,
    Gpu,
    Hca,
    Inventory,
    NvidiaDriver,
    PciDevice,
    Probe,
    StaticBar1,
    Unknown,
    Why,
    known,
)
from gdrstorm.policy.common import (
    NO_IMPORTER,
    answer_distance,
    answer_dmabuf_mr,
    answer_option,
    make_advice,
    make_finding,
    make_unknown,
    read_domain,
)
from gdrstorm.policy.ranges import is_covered, is_inside

P2P_POLICY = "nvidia-dmabuf-p2p"
DEFAULT_POLICY = "nvidia-dmabuf-default"
NEW_OPTION, OLD_OPTION = "EnableDmaBufP2P", "ExperimentalDmaBufP2P"
TOPOLOGY_OPTION, FORCE_SPA = "GrdmaPciTopoCheckOverride", "RmGpuDirectRdmaForceSPA"


class NvidiaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything both policies look at."""

    driver: NvidiaDriver
    mapping: MappingType
    window: Window | None
    static_bar1: Probe[StaticBar1]
    bar1: Probe[Bar]
    mig: Probe[bool]
    coherent: Probe[bool]
    dmabuf: Probe[bool]
    gpu_name: Probe[str]
    domain: Probe[str]
    mask_bits: Probe[int]
    hypervisor: Probe[str]


class Option(msgspec.Struct, frozen=True):
    """A driver option as it stands: unknown, absent (`name` empty) or on or off."""

    fact: Probe[bool]
    text: str
    name: str = ""


def _is_on(text: str) -> Probe[bool]:
    try:
        return known(int(text, 0) != 0)
    except ValueError:
        return Probe(unknown=Unknown(Why.UNREADABLE, f"no number: {text!r}"))


def find_settings(driver: NvidiaDriver, name: str) -> tuple[list[str], list[str]]:
    """Values of an option: as a parameter of the driver, and in RegistryDwords."""
    listed: list[str] = []
    dwords: list[str] = []
    for param in driver.params.value or ():
        if param.name == name:
            (dwords if "RegistryDwords" in param.source else listed).append(param.value)
    return listed, dwords


def read_option(driver: NvidiaDriver) -> Option:
    """The newer name where the driver lists it, else the older one; contradictions are unknown."""
    if driver.params.value is None:
        return Option(Probe(unknown=driver.params.unknown), "driver parameters")
    for name in (NEW_OPTION, OLD_OPTION):
        listed, dwords = find_settings(driver, name)
        if not listed:
            continue
        values = {_is_on(value) for value in (*listed, *dwords)}
        text = f"{name}={listed[0]}" + (f", RegistryDwords {dwords[-1]}" if dwords else "")
        if len(values) == 1:
            return Option(values.pop(), text, name)
        reason = Unknown(Why.UNREADABLE, "parameter and RegistryDwords differ")
        return Option(Probe(unknown=reason), text, name)
    stray = [n for n in (NEW_OPTION, OLD_OPTION) if find_settings(driver, n)[1]]
    if stray:
        text = f"{stray[0]} is in RegistryDwords, but the driver lists no such parameter"
        return Option(known(False), text)
    return Option(known(False), f"the driver has neither {NEW_OPTION} nor {OLD_OPTION}")


def find_bar1(device: PciDevice) -> Probe[Bar]:
    """BAR1 in NVIDIA's count: the second memory BAR (PCI index 1, or 2 behind a 64-bit BAR0)."""
    if device.bars.value is None:
        return Probe(unknown=device.bars.unknown)
    memory = [bar for bar in device.bars.value if bar.is_memory]
    if len(memory) < 2:
        return Probe(unknown=Unknown(Why.NO_DEVICE, f"{device.bdf} has no second memory BAR"))
    return known(memory[1])


def gather(
    inventory: Inventory, request: Request, gpu: Gpu, device: PciDevice, importer: PciDevice | None
) -> NvidiaFacts:
    """The facts of one pair; those of the importer are unknown where there is none."""
    nobody = Probe[int](unknown=NO_IMPORTER)
    return NvidiaFacts(
        driver=inventory.nvidia,
        mapping=request.mapping,
        window=request.window,
        static_bar1=gpu.state.static_bar1,
        bar1=find_bar1(device),
        mig=gpu.state.mig,
        coherent=gpu.state.coherent,
        dmabuf=gpu.state.dmabuf,
        gpu_name=gpu.name,
        domain=read_domain(inventory, importer) if importer else Probe(unknown=NO_IMPORTER),
        mask_bits=importer.dma_mask_bits if importer else nobody,
        hypervisor=inventory.machine.hypervisor,
    )


def _answer_driver(facts: NvidiaFacts) -> Finding:
    flavour = facts.driver.flavour
    fact = (
        Probe[bool](unknown=flavour.unknown) if flavour.unknown else known(flavour.value == "open")
    )
    text = (
        f"{flavour.get('?')} {facts.driver.version.get('?')}"
        if flavour.is_known
        else "NVIDIA driver"
    )
    return make_finding(
        "driver-open",
        fact,
        text,
        "install the open kernel modules, e.g. nvidia-open (risk: pre-Turing GPUs stop working)",
    )


def _answer_option(facts: NvidiaFacts) -> Finding:
    option = read_option(facts.driver)
    if option.name:
        remedy = (
            f"options nvidia NVreg_{option.name}=1 in /etc/modprobe.d, then reload the driver "
            "(risk: experimental path; ends all GPU work)"
        )
    else:
        remedy = "build the driver with the change; stock drivers refuse FORCE_PCIE on this GPU"
    return make_finding("option-on", option.fact, option.text, remedy)


def _answer_mapping(facts: NvidiaFacts, wanted: MappingType, predicate: str) -> Finding:
    fact = known(facts.mapping is wanted)
    return make_finding(
        predicate, fact, f"mapping type {facts.mapping.value}", f"ask for {wanted.value}"
    )


def _answer_coherent(facts: NvidiaFacts) -> Finding:
    fact = facts.coherent
    if fact.value is None:
        return make_unknown("gpu-not-coherent", fact.unknown)
    text = "coherent: this GPU keeps the stock path" if fact.value else "not coherent"
    return make_finding(
        "gpu-not-coherent", known(not fact.value), text, f"see policy {DEFAULT_POLICY}"
    )


def _answer_static(facts: NvidiaFacts) -> Finding:
    name, static = "static-bar1", facts.static_bar1
    if facts.bar1.unknown and facts.bar1.unknown.why is Why.NO_DEVICE:
        return Finding(
            name, Answer.NO, facts.bar1.unknown.detail, "enable Above 4G Decoding in firmware"
        )
    if static.value is None:
        return make_unknown(name, static.unknown)
    found = static.value
    text = f"enabled={int(found.is_enabled)} start={found.start:#x} size={found.size:#x}"
    usable = found.is_enabled and found.size > 0
    if usable and facts.bar1.value is None:
        return make_unknown(name, facts.bar1.unknown, "BAR1")
    remedy = (
        "enable Resizable BAR and Above 4G Decoding in firmware, so that BAR1 spans video memory"
    )
    return make_finding(name, known(usable), text, remedy)


def _answer_mig(facts: NvidiaFacts) -> Finding:
    if facts.mig.value is None:
        return make_unknown("mig-off", facts.mig.unknown)
    text = "MIG is on" if facts.mig.value else "MIG is off"
    remedy = "nvidia-smi -i GPU -mig 0 (risk: ends all work on the GPU)"
    return make_finding("mig-off", known(not facts.mig.value), text, remedy)


def _answer_range(facts: NvidiaFacts) -> Finding:
    name, static = "range-in-static-bar1", facts.static_bar1
    if facts.window is not None and facts.window.size <= 0:
        return Finding(name, Answer.NO, "the range is empty", "export at least one page")
    if static.value is None:
        return make_unknown(name, static.unknown)
    outer = Window(static.value.start, static.value.size if static.value.is_enabled else 0)
    where = f"window [{outer.start:#x}, {outer.start + outer.size:#x})"
    if facts.window is None:
        return make_finding(name, known(outer.size > 0), f"any range in {where}", "see static-bar1")
    inner = facts.window
    text = f"range [{inner.start:#x}, {inner.start + inner.size:#x}) in {where}"
    return make_finding(name, known(is_inside(inner, outer)), text, "export less, or elsewhere")


def _answer_domain(facts: NvidiaFacts) -> Finding:
    name, domain = "importer-identity-domain", facts.domain
    if domain.value is None:
        return make_unknown(name, domain.unknown)
    if domain.value == "none":
        remedy = "enable the IOMMU in firmware and boot with iommu=pt (intel_iommu=on on Intel)"
        return Finding(
            name, Answer.NO, "no IOMMU domain at all, which the driver refuses too", remedy
        )
    remedy = "boot with iommu=pt (risk: devices reach all memory: no isolation by the IOMMU)"
    return make_finding(
        name, known(domain.value == "identity"), f"domain type {domain.value}", remedy
    )


def _answer_mask(facts: NvidiaFacts) -> Finding:
    name, bar, bits = "importer-dma-mask", facts.bar1, facts.mask_bits
    if bits.value is None:
        return make_unknown(name, bits.unknown, "DMA mask")
    if bar.value is None:
        return make_unknown(name, bar.unknown, "BAR1")
    text = f"{bits.value} bits; BAR1 [{bar.value.start:#x}, {bar.value.last + 1:#x})"
    covered = is_covered(Window(bar.value.start, bar.value.size), bits.value)
    remedy = "place BARs lower: MMIO High Base in firmware below the importer's reach"
    return make_finding(name, known(covered), text, remedy)


def judge_p2p(
    inventory: Inventory, facts: NvidiaFacts, route: P2pRoute | None, hca: Hca | None, importer: str
) -> tuple[Finding, ...]:
    """`nvidia-dmabuf-p2p`, predicate by predicate, and its advice."""
    return (
        _answer_driver(facts),
        _answer_option(facts),
        _answer_mapping(facts, MappingType.FORCE_PCIE, "mapping-force-pcie"),
        _answer_coherent(facts),
        _answer_mig(facts),
        _answer_static(facts),
        _answer_range(facts),
        answer_option(inventory, "kernel-p2pdma", "PCI_P2PDMA"),
        _answer_domain(facts),
        _answer_mask(facts),
        answer_distance(route),
        answer_dmabuf_mr(hca, importer),
        _advise_force_spa(facts),
        _advise_cuda(facts),
    )


def judge_default(
    facts: NvidiaFacts, path: PairPath | None, hca: Hca | None, importer: str
) -> tuple[Finding, ...]:
    """`nvidia-dmabuf-default`: the stock driver and the default mapping type."""
    return (
        _answer_driver(facts),
        _answer_mapping(facts, MappingType.DEFAULT, "mapping-default"),
        _answer_dmabuf(facts),
        _answer_topology(facts, path),
        answer_dmabuf_mr(hca, importer),
        _advise_cuda(facts),
    )


def _answer_dmabuf(facts: NvidiaFacts) -> Finding:
    remedy = "update the driver; the kernel needs CONFIG_DMA_SHARED_BUFFER"
    return make_finding("driver-dmabuf", facts.dmabuf, "dma-buf capability of the driver", remedy)


def _answer_topology(facts: NvidiaFacts, path: PairPath | None) -> Finding:
    name = "grdma-topology"
    if facts.coherent.value:
        return Finding(name, Answer.YES, "coherent GPU: the default mapping needs no topology")
    if facts.coherent.unknown or facts.driver.params.unknown:
        return make_unknown(name, facts.coherent.unknown or facts.driver.params.unknown)
    listed, _ = find_settings(facts.driver, TOPOLOGY_OPTION)
    override = listed[0] if listed else "0"
    if override in {"1", "2"}:
        remedy = f"unset NVreg_{TOPOLOGY_OPTION} and reload the driver"
        text = f"{TOPOLOGY_OPTION}={override}"
        return make_finding(name, known(override == "1"), text, remedy)
    if path is None:
        return make_unknown(name, NO_IMPORTER)
    if path.common:
        return Finding(name, Answer.YES, f"common bridge {path.common}")
    # NVIDIA's list of chipsets that break peer traffic is internal to the driver.
    text = "no common switch; whether this chipset is on the driver's list, only it knows"
    return Finding(name, Answer.UNKNOWN, text, "try it: the kernel log names a refused topology")


def _advise_force_spa(facts: NvidiaFacts) -> Finding:
    if facts.driver.params.unknown:
        return make_advice("force-spa", Answer.UNKNOWN, str(facts.driver.params.unknown))
    listed, dwords = find_settings(facts.driver, FORCE_SPA)
    values = [*listed, *dwords]
    if not any(_is_on(value).value for value in values):
        return make_advice("force-spa", Answer.YES, f"{FORCE_SPA} is not set")
    if facts.coherent.value:
        return make_advice("force-spa", Answer.YES, f"{FORCE_SPA} is set on a coherent GPU")
    text = f"{FORCE_SPA}={values[-1]}, and the GPU is not known to be coherent"
    return make_advice(
        "force-spa", Answer.NO, text, "remove it from RegistryDwords, reload the driver"
    )


def _advise_cuda(facts: NvidiaFacts) -> Finding:
    name = facts.gpu_name.value or ""
    if "geforce" in name.lower():
        text = f"{name}: stock libcuda is reported not to advertise dma-buf on GeForce"
        remedy = "use the rm exporter, which asks the kernel without CUDA"
        return make_advice("cuda-userspace", Answer.UNKNOWN, text, remedy)
    if facts.dmabuf.value is None:
        return make_advice("cuda-userspace", Answer.UNKNOWN, str(facts.dmabuf.unknown))
    answer = Answer.YES if facts.dmabuf.value else Answer.NO
    return make_advice("cuda-userspace", answer, f"{name or 'GPU'}: driver's dma-buf capability")
