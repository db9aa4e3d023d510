"""The reader of /dev/kmsg, over a device of our own that has the kernel's ways."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gdrstorm.kmsg import reader as module
from gdrstorm.kmsg.devkmsg import devkmsg_unlimited
from gdrstorm.kmsg.reader import KmsgReader
from gdrstorm.kmsg.record import Gap, Record


class Device:
    """What read() of /dev/kmsg answers, call by call; an int is an errno."""

    def __init__(self, *answers: bytes | int) -> None:
        self.answers = list(answers)

    def read(self, fd: int, size: int) -> bytes:
        answer = self.answers.pop(0) if self.answers else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, "test")
        return answer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = tmp_path / "kmsg"
    log.write_bytes(b"")
    return log


def line(seq: int, text: str = "text") -> bytes:
    return f"6,{seq},{seq * 10},-;{text}\n".encode()


def test_records_until_there_is_none(path: Path) -> None:
    with KmsgReader(path, read=Device(line(5), line(6), errno.EAGAIN, line(7)).read) as reader:
        assert [getattr(r, "seq", None) for r in reader.read_records()] == [5, 6]
        assert [getattr(r, "seq", None) for r in reader.read_records()] == [7]
        assert reader.read_records() == []
        assert reader.fileno() >= 0


def test_overwritten_records_are_a_gap(path: Path) -> None:
    with KmsgReader(path, read=Device(line(5), errno.EPIPE, line(105)).read) as reader:
        found = reader.read_records()
    assert found[1] == Gap(6, 99)
    assert isinstance(found[2], Record)
    with KmsgReader(path, read=Device(errno.EPIPE, line(105)).read) as reader:
        assert reader.read_records()[0] == Gap(0, 105)


def test_limit(path: Path) -> None:
    with KmsgReader(path, read=Device(*[line(n) for n in range(10)]).read) as reader:
        assert len(reader.read_records(4)) == 4
        assert len(reader.read_records(40)) == 6


def test_starts_after_a_marker(path: Path) -> None:
    answers = [line(1, "old"), line(2, "gdrstorm run begin"), line(3, "new")]
    with KmsgReader(path, since="run begin", read=Device(*answers).read) as reader:
        assert not reader.marker_found
        (record,) = reader.read_records()
        assert isinstance(record, Record)
        assert (record.text, reader.marker_found) == ("new", True)


def test_other_errors_are_not_swallowed(path: Path) -> None:
    with KmsgReader(path, read=Device(errno.EIO).read) as reader, pytest.raises(OSError) as caught:
        reader.read_records()
    assert caught.value.errno == errno.EIO


def test_half_a_record_is_kept(path: Path) -> None:
    with KmsgReader(path, read=Device(b"no record").read) as reader:
        (record,) = reader.read_records()
    assert isinstance(record, Record)
    assert record.text == "no record"


def test_no_device(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KmsgReader(tmp_path / "absent")


def test_close_twice(path: Path) -> None:
    reader = KmsgReader(path)
    fd = reader.fileno()
    reader.close()
    reader.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_marker_is_found_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(line(41, "other"), line(42, "gdrstorm 1: begin"))
    monkeypatch.setattr(module.os, "read", device.read)
    with KmsgReader(path) as reader:
        assert reader.write_marker("gdrstorm 1:  begin\n") == 42
    assert path.read_bytes() == b"<14>gdrstorm 1: begin\n"


def test_marker_that_the_kernel_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "read", Device(line(41, "other")).read)
    with KmsgReader(path) as reader:
        assert reader.write_marker("gdrstorm 1: begin") is None


@pytest.mark.parametrize("text", ["", " \n", "x" * 1000])
def test_no_marker(path: Path, text: str) -> None:
    with KmsgReader(path) as reader, pytest.raises(ValueError):
        reader.write_marker(text)


def test_rate_limit_is_lifted_and_restored_on_every_way_out(tmp_path: Path) -> None:
    setting = tmp_path / "printk_devkmsg"
    setting.write_text("ratelimit\n")
    with devkmsg_unlimited(setting, tmp_path / "lock") as reason:
        assert reason is None
        assert setting.read_text() == "on\n"
    assert setting.read_text() == "ratelimit\n"
    with pytest.raises(KeyboardInterrupt), devkmsg_unlimited(setting, tmp_path / "lock"):
        raise KeyboardInterrupt
    assert setting.read_text() == "ratelimit\n"


def test_rate_limit_that_was_lifted_is_left_alone(tmp_path: Path) -> None:
    setting = tmp_path / "printk_devkmsg"
    setting.write_text("on\n")
    setting.chmod(0o444)
    with devkmsg_unlimited(setting, tmp_path / "lock") as reason:
        assert reason is None
    assert setting.read_text() == "on\n"


def test_rate_limit_that_cannot_be_lifted_says_so(tmp_path: Path) -> None:
    with devkmsg_unlimited(tmp_path / "absent", tmp_path / "lock") as reason:
        assert reason is not None
        assert "ENOENT" in reason
