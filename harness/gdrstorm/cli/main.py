"""The command `gdrstorm`: one verb a file, loaded when it is called, so that --help stays fast.

Exit codes: 0 PASS or done, 1 FAIL, 2 wrong use or bad input, 3 BROKEN, 4 SKIP or not ready, 5 LOST.
"""

from __future__ import annotations

import errno
import sys
import tempfile
import traceback
from typing import Any

import typer

from gdrstorm import __version__
from gdrstorm.cli.bed import app as bed_app
from gdrstorm.cli.check import check
from gdrstorm.cli.inventory import inventory
from gdrstorm.cli.judge import judge
from gdrstorm.cli.kmsg import kmsg
from gdrstorm.cli.list import list_scenarios
from gdrstorm.cli.output import give_up_stdout, prepare_streams
from gdrstorm.cli.report import report
from gdrstorm.cli.run import run
from gdrstorm.cli.topo import topo
from gdrstorm.errors import BrokenError, GdrstormError

#: what a shell shows for SIGPIPE; 0 and 1 would be verdicts
_PIPE_CLOSED = 141
#: click's base of all command line errors; typer carries its own copy of click in newer versions
CommandLineError: Any = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)

app = typer.Typer(
    name="gdrstorm",
    help="Stress the kernel path of GPUDirect RDMA over DMA-BUF, and keep the evidence.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run)
app.command("list")(list_scenarios)
app.command("judge")(judge)
app.command("report")(report)
app.command("check")(check)
app.command("topo")(topo)
app.command("inventory")(inventory)
app.command("kmsg")(kmsg)
app.add_typer(bed_app, name="bed")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gdrstorm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    """Stress the kernel path of GPUDirect RDMA over DMA-BUF, and keep the evidence."""


def _report_crash(error: Exception) -> int:
    """One line for an error that nobody expected, the traceback in a file; exit code BROKEN, never FAIL."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        give_up_stdout()
        typer.echo(f"gdrstorm: cannot write the output: {error.strerror}", err=True)
        return BrokenError.exit_code
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gdrstorm-crash-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.write(traceback.format_exc())
        where = f"the traceback is in {file.name}"
    except OSError:
        where = traceback.format_exc()
    typer.echo(f"gdrstorm: the harness failed: {what} ({where})", err=True)
    return BrokenError.exit_code


def main() -> None:
    """Run the command line and exit; every expected failure is one line on stderr and its exit code."""
    prepare_streams()
    try:
        status = app(standalone_mode=False)
    except GdrstormError as error:
        typer.echo(f"gdrstorm: {error}", err=True)
        status = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("gdrstorm: interrupted", err=True)
        status = 130
    except CommandLineError as error:
        error.show()
        status = error.exit_code
    except (BrokenPipeError, SystemExit):
        # click and rich answer a closed pipe with SystemExit(1), which would read as FAIL
        give_up_stdout()
        status = _PIPE_CLOSED
    except Exception as error:
        status = _report_crash(error)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
