"""Options to command lines, as data: what each option adds, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdrstorm.bed.vm import qemu
from gdrstorm.bed.vm.options import Accel, BedOptions, Domain, Iommu, LinkLayer, Topology
from gdrstorm.errors import UsageError

MIB = 1 << 20
CHANNELS = qemu.Channels(qmp=5, agent=7, journal=8)


def argv(options: BedOptions, accel: Accel = Accel.TCG, **changes: object) -> list[str]:
    values: dict[str, object] = {
        "tree": Path("/tree"),
        "kernel": Path("/tree/vmlinux"),
        "initramfs": Path("/w/initramfs"),
        "package": Path("/p/gdrstorm"),
        "console_log": Path("/run/console.log"),
        "hca_sockets": tuple(Path(f"/w/hca{n}.sock") for n in range(options.hca)),
    }
    files = qemu.Files(**{**values, **changes})  # type: ignore[arg-type]
    return qemu.qemu_argv(options, files, CHANNELS, accel)


def pairs(words: list[str], flag: str) -> list[str]:
    return [words[n + 1] for n, word in enumerate(words) if word == flag]


def devices(words: list[str]) -> dict[str, dict[str, object]]:
    """JSON devices by id."""
    found = [json.loads(word) for word in pairs(words, "-device") if word.startswith("{")]
    return {device["id"]: device for device in found}


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        (BedOptions(), ["intel_iommu=on", "iommu=pt", "printk.devkmsg=on", "panic=-1"], ["nopt"]),
        (BedOptions(domain=Domain.TRANSLATED), ["intel_iommu=on", "iommu=nopt"], ["iommu=pt"]),
        (BedOptions(iommu=Iommu.NONE), [], ["intel_iommu=on", "iommu=pt", "iommu=nopt"]),
        (BedOptions(iommu=Iommu.VIRTIO), ["iommu=pt"], ["intel_iommu=on"]),
        (BedOptions(iommu=Iommu.AMD), ["amd_iommu=on", "iommu=pt"], ["intel_iommu=on"]),
        (BedOptions(hca=0), [], ["gdrstorm.load=ib_uverbs,rdma_ucm,mlx5_ib"]),
        (BedOptions(), ["gdrstorm.load=ib_uverbs,rdma_ucm,mlx5_ib"], ["gdrstorm.rxe=1"]),
        (BedOptions(hca=0, rxe=True), ["gdrstorm.rxe=1"], []),
        (BedOptions(append="slub_debug=FZ quiet"), ["slub_debug=FZ", "quiet"], []),
        (BedOptions(share=Path("/s")), ["gdrstorm.share=1"], ["gdrstorm.modules_share=1"]),
        (BedOptions(hca=0, load=("vgem",)), ["gdrstorm.load=vgem"], []),
    ],
)
def test_kernel_command_line(options: BedOptions, words: list[str], absent: list[str]) -> None:
    line = qemu.kernel_cmdline(options).split(" ")
    assert set(words) <= set(line)
    assert not set(absent) & set(line)
    assert "" not in line


def test_guest_is_told_the_hosts_counter() -> None:
    assert "tsc_early_khz=2445426" in qemu.kernel_cmdline(BedOptions(), 2445426).split()
    assert "tsc_early_khz" not in qemu.kernel_cmdline(BedOptions())
    line = pairs(argv(BedOptions(hca=0), tsc_khz=1000), "-append")[0]
    assert "tsc_early_khz=1000" in line.split()


def test_modules_are_loaded_once_in_order() -> None:
    options = BedOptions(hca=1, rxe=True, bars=(MIB,), load=("vgem", "mlx5_ib"))
    names = qemu.modules_to_load(options)
    assert len(names) == len(set(names))
    assert names[0] == "ib_uverbs" and names[-1] == "vgem"
    assert names.index("rdma_ucm") < names.index("mlx5_ib")
    assert names.index("vfio_iommu_type1") < names.index("vfio_pci")


def test_hcas_connect_to_the_model_behind_root_ports() -> None:
    found = devices(argv(BedOptions(hca=2)))
    for number in (0, 1):
        device = found[f"hca{number}"]
        assert device["driver"] == "vfio-user-pci"
        assert device["socket"] == {"type": "unix", "path": f"/w/hca{number}.sock"}
        assert found[str(device["bus"])]["driver"] == "pcie-root-port"
    slots = [d["slot"] for d in found.values() if "slot" in d]
    assert len(slots) == len(set(slots))


def test_sockets_must_match_the_hcas() -> None:
    with pytest.raises(UsageError, match="sockets"):
        argv(BedOptions(hca=1), hca_sockets=())


@pytest.mark.parametrize(
    ("topology", "hca_bus", "bar_bus"),
    [
        (Topology.PIX, "switch", "switch"),
        (Topology.PHB, "pcie.0", "pcie.0"),
        (Topology.NODE, "pcie.0", "pxb"),
        (Topology.SYS, "pcie.0", "pxb"),
    ],
)
def test_topology_places_the_bars(topology: Topology, hca_bus: str, bar_bus: str) -> None:
    words = argv(BedOptions(bars=(64 * MIB, MIB), topology=topology))
    found = devices(words)
    assert found["rp-hca0"]["bus"] == hca_bus
    assert found["rp-bar0"]["bus"] == found["rp-bar1"]["bus"] == bar_bus
    assert found["bar0"]["bus"] == "rp-bar0"
    assert found["bar1"]["memdev"] == "barmem1"
    assert f"memory-backend-memfd,id=barmem0,size={64 * MIB},share=on" in pairs(words, "-object")
    node = {Topology.NODE: 0, Topology.SYS: 1}.get(topology)
    assert found.get("pxb", {}).get("numa_node") == node


def test_sys_has_two_numa_nodes_with_all_cpus_and_memory() -> None:
    words = argv(BedOptions(bars=(MIB,), topology=Topology.SYS, smp=4))
    assert pairs(words, "-numa") == [
        "node,nodeid=0,memdev=ram0,cpus=0-1",
        "node,nodeid=1,memdev=ram1,cpus=2-3",
    ]
    assert pairs(words, "-smp") == ["4,sockets=2,cores=2,threads=1"]
    ram = [word for word in pairs(words, "-object") if "id=ram" in word]
    assert len(ram) == 2 and all(f"size={512 * MIB}" in word for word in ram)


@pytest.mark.parametrize(
    ("iommu", "driver"),
    [
        (Iommu.INTEL, "intel-iommu,caching-mode=on,intremap=on"),
        (Iommu.VIRTIO, "virtio-iommu-pci,bus=pcie.0"),
        (Iommu.AMD, "amd-iommu,intremap=on,dma-remap=on"),
    ],
)
def test_iommu_comes_before_what_it_guards(iommu: Iommu, driver: str) -> None:
    found = pairs(argv(BedOptions(iommu=iommu)), "-device")
    assert found[0] == driver


def test_no_iommu_no_device() -> None:
    assert not [d for d in pairs(argv(BedOptions(iommu=Iommu.NONE)), "-device") if "iommu" in d]


def test_memory_is_shared_and_accelerator_is_the_chosen_one() -> None:
    tcg, kvm = argv(BedOptions()), argv(BedOptions(), Accel.KVM)
    assert pairs(tcg, "-accel") == ["tcg,thread=multi"]
    assert pairs(kvm, "-accel") == ["kvm"]
    assert "kernel-irqchip=split" in pairs(kvm, "-machine")[0]
    assert "kernel-irqchip" not in pairs(tcg, "-machine")[0]
    assert "memory-backend=ram0" in pairs(tcg, "-machine")[0]
    assert f"memory-backend-memfd,id=ram0,size={1 << 30},share=on" in pairs(tcg, "-object")


def test_channels_and_console_log() -> None:
    words = argv(BedOptions(hca=0), console_log=Path("/a,b/console.log"))
    assert "file,id=console,path=/a,,b/console.log" in pairs(words, "-chardev")
    ports = [d for d in pairs(words, "-device") if d.startswith("virtserialport")]
    assert ports == [
        "virtserialport,chardev=port1,name=gdrstorm.agent,nr=1",
        "virtserialport,chardev=port2,name=gdrstorm.journal,nr=2",
    ]


def test_shares_are_read_only() -> None:
    options = BedOptions(hca=0, share=Path("/s"), kernel=Path("/k"), modules=Path("/m"))
    shares = pairs(argv(options), "-fsdev")
    assert [s.split(",")[1] for s in shares] == ["id=tree", "id=package", "id=modules", "id=share"]
    assert all("readonly=on" in share and "multidevs=remap" in share for share in shares)


def test_extra_devices() -> None:
    found = devices(argv(BedOptions(hca=0, edu=True, aer=True)))
    assert found["edu0"]["driver"] == "edu"
    assert found["aer0"]["driver"] == "pcie-root-port"
    assert not devices(argv(BedOptions(hca=0)))


def test_qemu_runs_with_the_linker_of_the_tree() -> None:
    words = argv(BedOptions(hca=0))
    assert words[0] == "/tree/lib64/ld-linux-x86-64.so.2"
    assert "/tree/usr/bin/qemu-system-x86_64" in words
    assert pairs(words, "-L") == ["/tree/usr/share/qemu", "/tree/usr/share/seabios"]


def test_model_command_line() -> None:
    words = qemu.model_argv(
        "/py", (Path("/w/a"), Path("/w/b")), Path("/w/ctl"), LinkLayer.INFINIBAND
    )
    assert words[:3] == ["/py", "-m", "gdrstorm.bed.connectx.server"]
    assert pairs(words, "--socket") == ["/w/a", "/w/b"]
    assert pairs(words, "--control") == ["/w/ctl"]
    assert pairs(words, "--link-layer") == ["infiniband"]
