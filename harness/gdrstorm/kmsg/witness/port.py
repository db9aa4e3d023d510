"""Witness: hardware error counters of RDMA ports, to events of what was added.

Only counters that count something wrong. On some cards a read is a firmware command and can fill the kernel
log, so reads are at least `interval_ns` apart, and a counter that does not answer is not asked again.
Names: Documentation/ABI/stable/sysfs-class-infiniband and the mlx5 hw_counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gdrstorm.kmsg.witness.common import EventMaker, entries, monotonic_ns, read_text
from gdrstorm.model.event import Event, EventClass, Severity, Source

_ERROR = ("link_downed", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
# Flushed completions are what every teardown makes: kept, but no fault.
_NOTICE = (
    "resp_cqe_flush_error",
    "req_cqe_flush_error",
    "resp_rnr_nak",
    "rnr_nak_retry_err",
    "duplicate_request",
)
_WARNING = (
    "symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_constraint_errors", "port_rcv_constraint_errors",
    "out_of_buffer", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "req_cqe_error",
    "resp_cqe_error", "req_remote_access_errors", "resp_remote_access_errors", "req_remote_invalid_request",
    "resp_local_length_error", "rx_icrc_encapsulated", "req_transport_retries_exceeded", "roce_adp_retrans_to",
    "rcvd_pkt_errors", "retry_exceeded_err", "send_err", "rnr_nak_retry_exceeded",
)  # fmt: skip
SEVERITIES = (
    dict.fromkeys(_ERROR, Severity.ERROR)
    | dict.fromkeys(_WARNING, Severity.WARNING)
    | dict.fromkeys(_NOTICE, Severity.INFO)
)


class PortCounters:
    """Error counters of all ports of the RDMA devices named, or of all devices."""

    def __init__(
        self,
        ibdevs: Iterable[str] = (),
        root: Path = Path("/sys"),
        interval_ns: int = 5_000_000_000,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._class = root / "class/infiniband"
        self._ibdevs = tuple(ibdevs)
        self._interval_ns = interval_ns
        self._clock = clock
        self._next_ns = 0
        self._files: dict[Path, int] = {}
        self._maker = EventMaker(Source.PORT_COUNTER)

    def start(self) -> None:
        """Take the counters as they are. OSError when there is none."""
        for ibdev in self._ibdevs or [path.name for path in entries(self._class)]:
            for port in entries(self._class / ibdev / "ports"):
                for kind in ("counters", "hw_counters"):
                    self._add(port / kind)
        if not self._files:
            raise FileNotFoundError(2, f"no port counters under {self._class}")
        self._next_ns = self._clock() + self._interval_ns

    def poll(self) -> list[Event]:
        """What was added, at most once an interval."""
        now = self._clock()
        if now < self._next_ns:
            return []
        self._next_ns = now + self._interval_ns
        events: list[Event] = []
        for path, before in list(self._files.items()):
            value = _read_number(path)
            if value is None:
                del self._files[path]
                continue
            self._files[path] = value
            if value > before:
                events.append(self._event(path, value - before))
        return events

    def close(self) -> None:
        """Nothing is held."""
        self._files.clear()

    def _add(self, folder: Path) -> None:
        for path in entries(folder):
            if path.name in SEVERITIES and (value := _read_number(path)) is not None:
                self._files[path] = value

    def _event(self, path: Path, added: int) -> Event:
        ibdev, port = path.parents[3].name, path.parents[1].name
        device = (path.parents[3] / "device").resolve()
        return self._maker.make(
            EventClass.COUNTER,
            SEVERITIES[path.name],
            f"port counter {path.name}",
            device=device.name if ":" in device.name else None,
            code=path.name,
            count=added,
            details={"ibdev": ibdev, "ib_port": port},
        )


def _read_number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text and text.strip().isdigit() else None
