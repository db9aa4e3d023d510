"""Unpacks one zstd frame with the system's libzstd, which kmod needs for packed modules anyway.

Python has zstd from 3.14 on only. API: zstd.h, stable section.
"""

from __future__ import annotations

import ctypes

_UNKNOWN_SIZE, _SIZE_ERROR = (1 << 64) - 1, (1 << 64) - 2


def decompress_zstd(data: bytes, limit: int) -> bytes:
    """The content of a frame that states its size. ValueError without library, size or sense."""
    try:
        lib = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise ValueError("packed with zstd, and there is no libzstd.so.1") from error
    size_t, pointer = ctypes.c_size_t, ctypes.c_char_p
    lib.ZSTD_getFrameContentSize.restype = ctypes.c_uint64
    lib.ZSTD_getFrameContentSize.argtypes = [pointer, size_t]
    lib.ZSTD_decompress.restype = size_t
    lib.ZSTD_decompress.argtypes = [ctypes.c_void_p, size_t, pointer, size_t]
    lib.ZSTD_isError.argtypes = [size_t]
    size = lib.ZSTD_getFrameContentSize(data, len(data))
    if size in {_UNKNOWN_SIZE, _SIZE_ERROR} or size > limit:
        raise ValueError("zstd frame without a usable size")
    target = ctypes.create_string_buffer(max(size, 1))
    written = lib.ZSTD_decompress(target, size, data, len(data))
    if lib.ZSTD_isError(written) or written != size:
        raise ValueError("broken zstd frame")
    return target.raw[:size]
