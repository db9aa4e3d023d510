"""A server for the vfio-user protocol, complete for what stock QEMU sends; knows no device.

``device`` is the contract with a device model, ``pci_config`` helps it with its config space,
``server`` carries it. The format comes from QEMU's ``docs/interop/vfio-user.rst``.
"""
