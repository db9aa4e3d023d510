"""The oracle on a real GPU: what it reads is what NVML and RM say, what it predicts is what RM does."""

from __future__ import annotations

from contextlib import closing

import pytest

from gdrstorm.errors import CallError
from gdrstorm.host import read_inventory
from gdrstorm.model.admission import Answer
from gdrstorm.model.inventory import Inventory
from gdrstorm.policy import P2P_POLICY, judge_pair
from gdrstorm.stack import registry
from gdrstorm.stack.exporter.gpu_device import Mapping
from gdrstorm.stack.exporter.rm import RmExporter
from gdrstorm.stack.exporter.rm_state import RmStateReader

pytestmark = pytest.mark.hardware
SIZE = 2 << 20
NV_ERR_NOT_SUPPORTED = 0x56


@pytest.fixture(scope="module")
def there() -> Inventory:
    support = registry.probe_exporter("rm", "0")
    if not support.ok:
        pytest.skip(support.reason)
    return read_inventory(hash_files=False, gpu_reader=RmStateReader())


def test_facts_of_the_gpu(there: Inventory) -> None:
    gpu = there.gpus[0]
    assert there.nvidia.flavour.value in {"open", "proprietary"}
    assert there.nvidia.params.is_known
    device = there.pci_device(gpu.bdf)
    assert device is not None
    sizes = {bar.size for bar in device.bars.get(())}
    assert gpu.state.bar1_bytes.value in sizes
    static = gpu.state.static_bar1.value
    assert static is not None and static.start + static.size <= max(sizes)
    assert gpu.state.mig.is_known and gpu.state.coherent.is_known


def test_force_pcie_is_refused_as_predicted(there: Inventory) -> None:
    """On a non-coherent GPU without the option: option-on is NO, and RM answers NOT_SUPPORTED."""
    gpu = there.gpus[0]
    admission = judge_pair(there, P2P_POLICY, gpu.bdf, "")
    answers = {f.predicate: f.answer for f in admission.findings}
    if gpu.state.coherent.value or answers["option-on"] is not Answer.NO:
        pytest.skip("this GPU is coherent, or its driver has the option on")
    with RmExporter.open("0") as exporter, closing(exporter.alloc(SIZE)) as memory:
        with pytest.raises(CallError) as refused:
            exporter.export_mapped(memory, 0, SIZE, Mapping.FORCE_PCIE)
        assert getattr(refused.value, "status", None) == NV_ERR_NOT_SUPPORTED
        # The control: the default mapping of the same memory is exported.
        exporter.export_mapped(memory, 0, SIZE, Mapping.DEFAULT).close()
