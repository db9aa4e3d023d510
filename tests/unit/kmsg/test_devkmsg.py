"""The log's rate limit: lifted while anybody needs it, put back by the last, also after kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gdrstorm.kmsg.devkmsg import devkmsg_unlimited, put_back_if_last


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    setting = tmp_path / "printk_devkmsg"
    setting.write_text("ratelimit\n")
    return setting, tmp_path / "lock"


def test_lifted_inside_and_put_back_after(paths: tuple[Path, Path]) -> None:
    setting, _ = paths
    with pytest.raises(RuntimeError), devkmsg_unlimited(*paths) as problem:
        assert problem is None
        assert setting.read_text() == "on\n"
        raise RuntimeError
    assert setting.read_text() == "ratelimit\n"


def test_the_last_of_several_puts_it_back(paths: tuple[Path, Path]) -> None:
    setting, _ = paths
    first, second = devkmsg_unlimited(*paths), devkmsg_unlimited(*paths)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert setting.read_text() == "on\n"
    put_back_if_last(*paths)
    assert setting.read_text() == "on\n", "somebody still needs it"
    second.__exit__(None, None, None)
    assert setting.read_text() == "ratelimit\n"


def test_a_killed_holder_is_cleaned_up_by_another(paths: tuple[Path, Path]) -> None:
    setting, _ = paths
    ready, written = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = devkmsg_unlimited(*paths)
        held.__enter__()
        os.write(written, b"x")
        signal.pause()
    assert os.read(ready, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert setting.read_text() == "on\n"
    put_back_if_last(*paths)
    assert setting.read_text() == "ratelimit\n"
    os.close(ready)
    os.close(written)


def test_a_setting_that_cannot_be_written_is_said(paths: tuple[Path, Path]) -> None:
    setting, lock = paths
    setting.unlink()
    with devkmsg_unlimited(setting, lock) as problem:
        assert problem is not None and "No such file" in problem
    with devkmsg_unlimited(setting, Path("/proc/no/lock")) as problem:
        assert problem is not None and "/proc/no/lock" in problem


def test_on_stays_on(paths: tuple[Path, Path]) -> None:
    paths[0].write_text("on\n")
    with devkmsg_unlimited(*paths):
        pass
    assert paths[0].read_text() == "on\n"
