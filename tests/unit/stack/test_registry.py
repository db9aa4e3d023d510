"""Back ends by name: unknown ones are wrong use, missing ones have a reason, none takes the others along."""

from __future__ import annotations

import sys

import pytest

from gdrstorm.errors import UnavailableError, UsageError
from gdrstorm.model.stack import Support
from gdrstorm.stack import registry
from gdrstorm.stack.importer.fake import FakeImporter


def test_probe_all_has_every_back_end_with_a_reason() -> None:
    found = registry.probe_all()
    names = [(b.kind, b.name) for b in found]
    assert names == [("exporter", n) for n in registry.exporter_names()] + [
        ("importer", n) for n in registry.importer_names()
    ]
    for back_end in found:
        assert back_end.support.ok is (back_end.support.reason == ""), back_end


@pytest.mark.parametrize("open_", [registry.open_exporter, registry.open_importer])
def test_unknown_name(open_: object) -> None:
    with pytest.raises(UsageError, match=r"no such (ex|im)porter: 'nothing'.*fake"):
        open_("nothing")  # type: ignore[operator]


def test_a_module_that_cannot_be_imported_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gdrstorm.stack.importer.prime", None)
    support = registry.probe_importer("prime")
    assert not support.ok and "cannot be imported" in support.reason
    with pytest.raises(UnavailableError, match="cannot be imported"):
        registry.open_importer("prime")
    assert registry.probe_importer("fake").ok


def test_open_asks_the_probe_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeImporter, "probe", classmethod(lambda cls, device=None: Support(False, "no such thing"))
    )
    with pytest.raises(UnavailableError, match="cannot use fake: no such thing"):
        registry.open_importer("fake")
