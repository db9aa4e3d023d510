"""Kernel and machine facts: taint letters, configuration, checkers, hardware against emulated."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from host_trees import CONFIG, RELEASE, Tree
from machines import arm, container, guest, h100, nothing

from gdrstorm.host.kernel import (
    find_checkers,
    parse_config,
    parse_lockdown,
    parse_taint,
    read_kernel,
)
from gdrstorm.host.machine import (
    decide_platform,
    find_hypervisor,
    parse_cpuinfo,
    parse_limits,
    read_machine,
    read_process,
)
from gdrstorm.model.inventory import (
    KernelOption,
    Limit,
    Platform,
    Probe,
    Unknown,
    Why,
    known,
)

NOBODY_KNOWS: Probe = Probe(unknown=Unknown(Why.NO_FILE, "x"))


@pytest.mark.parametrize(
    ("value", "letters"),
    [
        (0, ()),
        (1, ("P",)),
        (4096, ("O",)),
        (12288, ("O", "E")),
        (1 << 9, ("W",)),
        (1 << 14, ("L",)),
        (1 << 25, ("bit 25",)),
    ],
)
def test_taint(value: int, letters: tuple[str, ...]) -> None:
    assert parse_taint(value) == letters


def test_config_keeps_wanted_options_only() -> None:
    text = CONFIG + "CONFIG_SOUND=y\nCONFIG_KASAN_INLINE=y\n#CONFIG_KCSAN=y\n"
    assert parse_config(text) == (
        KernelOption("DMA_API_DEBUG", "n"),
        KernelOption("DMA_SHARED_BUFFER", "y"),
        KernelOption("KASAN", "y"),
        KernelOption("PCI_P2PDMA", "y"),
        KernelOption("PROVE_LOCKING", "y"),
        KernelOption("VFIO_PCI_DMABUF", "y"),
    )


def test_an_option_the_configuration_is_silent_about_is_off(tmp_path: Path) -> None:
    kernel = read_kernel(h100(tmp_path))
    assert kernel.option("PCI_P2PDMA") == known("y")
    assert kernel.option("IOMMUFD") == known("n")


def test_config_of_the_running_kernel_wins(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.machine()
    tree.write("proc/config.gz", gzip.compress(b"CONFIG_KASAN=m\n"))
    assert read_kernel(tmp_path).config == known((KernelOption("KASAN", "m"),))
    tree.write("proc/config.gz", b"\x1f\x8bbroken")
    config = read_kernel(tmp_path).config
    assert config.unknown and config.unknown.why is Why.UNREADABLE


def test_without_a_configuration_options_are_unknown(tmp_path: Path) -> None:
    kernel = read_kernel(container(tmp_path))
    assert kernel.config.unknown and RELEASE in kernel.config.unknown.detail
    assert kernel.option("PCI_P2PDMA").unknown and kernel.checkers.unknown


def test_symbols_prove_options_where_there_is_no_configuration(tmp_path: Path) -> None:
    root = container(tmp_path)
    Tree(root).write("sys/kernel/btf/vmlinux", b"\x9f\xeb\0a\0pci_p2pdma_distance_many\0b\0")
    kernel = read_kernel(root)
    assert kernel.option("PCI_P2PDMA") == known("y")
    assert kernel.option("VFIO_PCI_DMABUF").unknown and kernel.option("KASAN").unknown
    # A configuration that is there has the last word.
    assert read_kernel(h100(tmp_path / "other")).proven == ()


@pytest.mark.parametrize(
    ("cmdline", "want"),
    [
        ("quiet", {"KASAN", "lockdep"}),
        ("kasan=off", {"lockdep"}),
        ("slub_debug=FZPU", {"KASAN", "lockdep", "slub_debug"}),
    ],
)
def test_checkers(cmdline: str, want: set[str]) -> None:
    got = find_checkers(known(parse_config(CONFIG)), known(cmdline), kmemleak=False)
    assert set(got.get(())) == want


def test_dma_debug_can_be_switched_off() -> None:
    config = known((KernelOption("DMA_API_DEBUG", "y"),))
    assert find_checkers(config, known(""), kmemleak=True) == known(("DMA_API_DEBUG", "kmemleak"))
    assert find_checkers(config, known("dma_debug=off"), kmemleak=False) == known(())


def test_lockdown() -> None:
    assert parse_lockdown("none [integrity] confidentiality") == "integrity"
    with pytest.raises(ValueError):
        parse_lockdown("none")


CPU = known(
    "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2{more}\n\nprocessor\t: 1\n"
)


def cpu(more: str = "") -> Probe[str]:
    return known(CPU.get("").format(more=more))


@pytest.mark.parametrize(
    ("flags", "names", "want"),
    [
        ("", ("Dell", "R760"), "none"),
        (" hypervisor", ("QEMU", "Standard PC"), "QEMU"),
        (" hypervisor", ("", ""), "some hypervisor"),
        (" hypervisor", ("Amazon EC2", "p5.48xlarge"), "EC2"),
    ],
)
def test_hypervisor(flags: str, names: tuple[str, str], want: str) -> None:
    assert find_hypervisor(cpu(flags), names) == known(want)


def test_hypervisor_is_unknown_where_no_cpu_flag_tells() -> None:
    assert find_hypervisor(known("CPU implementer\t: 0x41\n"), ("", "")).unknown
    assert find_hypervisor(NOBODY_KNOWS, ()).unknown


@pytest.mark.parametrize(
    ("cmdline", "hypervisor", "model", "real", "want"),
    [
        (known("quiet"), known("none"), known("EPYC"), False, Platform.HARDWARE),
        (known("quiet gdrstorm.bed=1"), known("none"), known("EPYC"), True, Platform.EMULATED),
        (known("gdrstorm.load=mlx5_ib"), known("none"), known("EPYC"), True, Platform.EMULATED),
        (known("quiet notgdrstorm.bed=1"), known("none"), known("EPYC"), True, Platform.HARDWARE),
        (
            known("quiet"),
            known("QEMU"),
            known("QEMU TCG CPU version 2.5+"),
            True,
            Platform.EMULATED,
        ),
        (known("quiet"), known("KVM"), known("EPYC"), True, Platform.HARDWARE),
        (known("quiet"), known("KVM"), known("EPYC"), False, Platform.EMULATED),
        (NOBODY_KNOWS, NOBODY_KNOWS, NOBODY_KNOWS, False, Platform.EMULATED),
    ],
)
def test_platform(
    cmdline: Probe[str], hypervisor: Probe[str], model: Probe[str], real: bool, want: Platform
) -> None:
    assert decide_platform(cmdline, hypervisor, model, real)[0] is want


def test_the_beds_guest_is_emulated_whatever_devices_it_has(tmp_path: Path) -> None:
    machine = read_machine(guest(tmp_path), read_kernel(tmp_path).cmdline, has_real_pci=True)
    assert machine.platform is Platform.EMULATED and "gdrstorm.bed=1" in machine.platform_reason


def test_machine(tmp_path: Path) -> None:
    machine = read_machine(h100(tmp_path), known(""), has_real_pci=True)
    assert machine.cpu_vendor == known("GenuineIntel") and machine.cpu_family == known(6)
    assert (machine.numa_nodes, machine.cpu_count) == (known(4), known(4))
    assert machine.memory_bytes == known(1056748036 << 10)
    assert machine.serial == known("SN-0042-XYZ")


def test_other_architectures_have_a_cpu_that_is_no_x86(tmp_path: Path) -> None:
    machine = read_machine(arm(tmp_path), known(""), has_real_pci=True)
    assert machine.cpu_vendor == known("implementer 0x41")
    assert machine.cpu_family.unknown


def test_cpuinfo_is_the_first_processor_only() -> None:
    assert parse_cpuinfo("a : 1\nb: x: y\n\na : 2\n") == {"a": "1", "b": "x: y"}


def test_limits() -> None:
    rows = parse_limits(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              unlimited            bytes     \n"
        "Max open files            1024                 1048576              files     \n"
    )
    assert rows == {"Max locked memory": Limit(8388608, -1), "Max open files": Limit(1024, 1048576)}


def test_containers(tmp_path: Path) -> None:
    assert read_process(container(tmp_path)).container == known("docker")
    tree = Tree(tmp_path)
    tree.link("proc/self/ns/net", "net:[4026531840]")
    assert read_process(tmp_path).namespaces == known(("net:[4026531840]",))
    other = tmp_path / "other"
    Tree(other).machine()
    assert read_process(other).container == known("none")
    (other / "proc/self/cgroup").write_text("0::/kubepods.slice/pod1\n")
    assert read_process(other).container == known("kubepods")
    assert read_process(nothing(tmp_path / "void")).container.unknown
