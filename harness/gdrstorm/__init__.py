"""gdrstorm: stress the kernel path of GPUDirect RDMA over DMA-BUF and keep the evidence."""

__version__ = "0.1.0"
