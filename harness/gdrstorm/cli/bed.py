"""`gdrstorm bed`: build the virtual machine bed, look at it, run commands in it, get a prompt.

Turns options into one BedOptions and ends into exit codes; everything else is in bed/vm. Imports
stay inside the verbs so that help is fast.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gdrstorm.bed.vm.options import (
    Accel,
    BedOptions,
    Domain,
    Iommu,
    LinkLayer,
    Topology,
    check_options,
)
from gdrstorm.errors import GdrstormError, UsageError
from gdrstorm.units import parse_size

app = typer.Typer(
    name="bed", help="The virtual machine bed: QEMU with a virtual ConnectX.", no_args_is_help=True
)

_INTERRUPTED = 130
_PANEL = "Machine"
_DEFAULT = BedOptions()

RunDir = Annotated[Path | None, typer.Option(help="Keep console.log and the other logs here.")]
Verb = Callable[..., int]


def bed_options(
    *,
    hca: Annotated[int, typer.Option(help="Virtual ConnectX devices, 0 to 2.")] = _DEFAULT.hca,
    link_layer: Annotated[
        LinkLayer, typer.Option(help="Link layer of the HCAs.")
    ] = _DEFAULT.link_layer,
    rxe: Annotated[bool, typer.Option("--rxe", help="Add a software RDMA device, rxe0.")] = False,
    bar: Annotated[
        list[str] | None, typer.Option(help="Add a PCI BAR of this size, e.g. 64MiB, for vfio-pci.")
    ] = None,
    topology: Annotated[
        Topology, typer.Option(help="Where the BARs are, seen from the HCAs.")
    ] = _DEFAULT.topology,
    iommu: Annotated[Iommu, typer.Option(help="IOMMU of the guest.")] = _DEFAULT.iommu,
    domain: Annotated[Domain, typer.Option(help="Default IOMMU domain type.")] = _DEFAULT.domain,
    share: Annotated[
        Path | None, typer.Option(help="Host directory, read-only at /gdrstorm/share.")
    ] = None,
    smp: Annotated[
        int, typer.Option(help="CPUs of the guest.", rich_help_panel=_PANEL)
    ] = _DEFAULT.smp,
    memory: Annotated[
        str, typer.Option(help="Memory of the guest.", rich_help_panel=_PANEL)
    ] = "1GiB",
    cpu: Annotated[
        str, typer.Option(help="CPU model, in QEMU's words.", rich_help_panel=_PANEL)
    ] = _DEFAULT.cpu,
    accel: Annotated[
        Accel, typer.Option(help="auto: KVM when it is proven, else TCG.", rich_help_panel=_PANEL)
    ] = _DEFAULT.accel,
    kernel: Annotated[
        Path | None,
        typer.Option(help="A kernel image (bzImage) of your own.", rich_help_panel=_PANEL),
    ] = None,
    modules: Annotated[
        Path | None, typer.Option(help="Its lib/modules/RELEASE.", rich_help_panel=_PANEL)
    ] = None,
    load: Annotated[
        list[str] | None, typer.Option(help="Load this module at boot.", rich_help_panel=_PANEL)
    ] = None,
    append: Annotated[
        str, typer.Option(help="More kernel command line.", rich_help_panel=_PANEL)
    ] = "",
    edu: Annotated[
        bool, typer.Option("--edu", help="Add QEMU's edu device.", rich_help_panel=_PANEL)
    ] = False,
    aer: Annotated[
        bool, typer.Option("--aer", help="Add root port aer0.", rich_help_panel=_PANEL)
    ] = False,
) -> BedOptions:
    """Checked options from what the command line says. UsageError."""
    try:
        bars = tuple(parse_size(text) for text in bar or ())
        memory_bytes = parse_size(memory)
    except ValueError as error:
        raise UsageError(str(error)) from None
    options = BedOptions(
        hca=hca,
        link_layer=link_layer,
        rxe=rxe,
        bars=bars,
        topology=topology,
        iommu=iommu,
        domain=domain,
        share=share,
        smp=smp,
        memory_bytes=memory_bytes,
        cpu=cpu,
        accel=accel,
        kernel=kernel,
        modules=modules,
        load=tuple(load or ()),
        append=append,
        edu=edu,
        aer=aer,
    )
    check_options(options)
    return options


def guarded(verb: Verb) -> Callable[..., None]:
    """A verb that exits with its status, with an error's exit code, or with 130 on Ctrl-C."""

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            status = verb(*args, **kwargs)
        except GdrstormError as error:
            typer.echo(f"gdrstorm: {error}", err=True)
            status = error.exit_code
        except KeyboardInterrupt:
            status = _INTERRUPTED
        raise typer.Exit(status)

    return run


def with_bed_options(verb: Verb) -> Verb:
    """Give `verb` the options of `bed_options` on its command line.

    It receives them as `options`.
    """
    own = inspect.signature(verb, eval_str=True).parameters
    shared = inspect.signature(bed_options, eval_str=True).parameters

    def run(**kwargs: Any) -> int:
        machine = {name: kwargs.pop(name) for name in shared}
        return verb(options=bed_options(**machine), **kwargs)

    kept = [
        p.replace(kind=p.KEYWORD_ONLY)
        for name, p in [*own.items(), *shared.items()]
        if name != "options"
    ]
    run.__name__, run.__doc__ = verb.__name__, verb.__doc__
    run.__annotations__ = {p.name: p.annotation for p in kept}
    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    return run


def _say_booting() -> None:
    """For people only: a script's output stays the command's."""
    if sys.stderr.isatty():
        typer.echo("booting the bed ...", err=True)


def _write(stream: Any) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        stream.buffer.write(data)
        stream.flush()

    return write


@app.command("exec")
@guarded
@with_bed_options
def exec_(
    *,
    options: BedOptions,
    command: Annotated[list[str], typer.Argument(help="Command and its arguments, after --.")],
    run_dir: RunDir = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for COMMAND.", min=0.1)] = None,
) -> int:
    """Boot the bed, run COMMAND as root in it, and return its exit status."""
    from gdrstorm.bed.vm import Bed

    _say_booting()
    with Bed(options, run_dir=run_dir) as bed:
        result = bed.run(
            command, timeout_s=timeout, on_stdout=_write(sys.stdout), on_stderr=_write(sys.stderr)
        )
    if result.error:
        typer.echo(f"gdrstorm: {result.error}", err=True)
    return result.status


@app.command("build")
@guarded
def build(
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build again.")] = False,
    mirror: Annotated[str | None, typer.Option(help="Debian mirror; default: the host's.")] = None,
) -> int:
    """Build the bed in the user's cache: a Debian tree with kernel and QEMU (once)."""
    from gdrstorm.bed.vm.build import build_bed
    from gdrstorm.bed.vm.image import bed_dir

    made, is_new = build_bed(
        lambda text: typer.echo(text, err=True), rebuild=rebuild, mirror=mirror
    )
    typer.echo(f"bed {'built' if is_new else 'is there'}: {bed_dir()}")
    typer.echo(f"kernel {made.kernel_release}, QEMU {made.qemu_version}")
    return 0


@app.command("info")
@guarded
def info(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """Say which bed there is: kernel, QEMU, packages, and whether KVM works here."""
    import msgspec

    from gdrstorm.bed.vm import image
    from gdrstorm.bed.vm.accel import prove_kvm

    found = image.read_image()
    proof = prove_kvm(found)
    if as_json:
        record = {"path": str(image.bed_dir()), "image": found, "kvm": proof}
        typer.echo(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())
        return 0
    kvm = "works" if proof.works else f"not used ({proof.reason})"
    for name, value in (
        ("bed", str(image.bed_dir())),
        ("built", found.built),
        ("kernel", f"{found.kernel_release} ({found.kernel_version})"),
        ("qemu", found.qemu_version),
        ("rdma-core", found.packages.get("rdma-core", "unknown")),
        ("packages", f"{len(found.packages)}, from {found.suite}"),
        ("kvm", kvm),
    ):
        typer.echo(f"{name:10} {value}")
    return 0


@app.command("shell")
@guarded
@with_bed_options
def shell(*, options: BedOptions, run_dir: RunDir = None) -> int:
    """Boot the bed and give a prompt in it; it ends with the shell."""
    from gdrstorm.bed.vm import Bed
    from gdrstorm.bed.vm.terminal import check_terminal, run_terminal

    check_terminal()
    _say_booting()
    with Bed(options, run_dir=run_dir) as bed:
        return run_terminal(bed, ["bash", "-l"])
