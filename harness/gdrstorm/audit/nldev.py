"""Resource counts of an RDMA device over netlink, as `rdma resource show` gives them.

Numbers and attributes are those of include/uapi/rdma/rdma_netlink.h. Needs no rights beyond opening a netlink socket.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

_NETLINK_RDMA = 20
_NLDEV = 5  # RDMA_NL_NLDEV
_CMD_GET = 1  # RDMA_NLDEV_CMD_GET
_CMD_RES_GET = 9  # RDMA_NLDEV_CMD_RES_GET
_ATTR_DEV_INDEX = 1
_ATTR_DEV_NAME = 2
_ATTR_RES_SUMMARY = 15
_ATTR_RES_SUMMARY_ENTRY = 16
_ATTR_RES_SUMMARY_ENTRY_NAME = 17
_ATTR_RES_SUMMARY_ENTRY_CURR = 18
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_NESTED = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


def parse_attributes(data: bytes) -> list[tuple[int, bytes]]:
    """Netlink attributes in order; stops at a length that makes no sense."""
    found = []
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size or length > len(data):
            break
        found.append((kind & _NESTED, data[_ATTRIBUTE.size : length]))
        data = data[(length + 3) & ~3 :]
    return found


def parse_summary(payload: bytes) -> dict[str, int]:
    """`{"mr": 3, "qp": 2, ...}` of one RES_GET answer."""
    counts = {}
    for kind, value in parse_attributes(payload):
        if kind != _ATTR_RES_SUMMARY:
            continue
        for _, entry in parse_attributes(value):
            attributes = dict(parse_attributes(entry))
            name = attributes.get(_ATTR_RES_SUMMARY_ENTRY_NAME, b"").rstrip(b"\0").decode()
            current = attributes.get(_ATTR_RES_SUMMARY_ENTRY_CURR, b"\0" * 8)
            if name:
                counts[name] = int.from_bytes(current, "little")
    return counts


def _ask(sock: socket.socket, command: int, flags: int, payload: bytes) -> list[bytes]:
    kind = (_NLDEV << 10) | command
    sock.send(
        _HEADER.pack(_HEADER.size + len(payload), kind, _NLM_F_REQUEST | flags, 1, 0) + payload
    )
    answers: list[bytes] = []
    while True:
        data = sock.recv(1 << 16)
        while len(data) >= _HEADER.size:
            length, answer, _, _, _ = _HEADER.unpack_from(data)
            body = data[_HEADER.size : length]
            data = data[(length + 3) & ~3 :]
            if answer == _NLMSG_ERROR:
                code = -int.from_bytes(body[:4], "little", signed=True)
                if code:
                    raise OSError(code, os.strerror(code))
                return answers
            if answer == _NLMSG_DONE:
                return answers
            answers.append(body)
        if not flags & _NLM_F_DUMP and answers:
            return answers


def read_resources(device: str) -> dict[str, int]:
    """Live objects of `device` by kind (pd, cq, qp, cm_id, mr, ctx, srq). OSError with ENODEV: no such device."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as sock:
        sock.settimeout(2)
        sock.bind((0, 0))
        for body in _ask(sock, _CMD_GET, _NLM_F_DUMP, b""):
            attributes = dict(parse_attributes(body))
            if attributes.get(_ATTR_DEV_NAME, b"").rstrip(b"\0").decode() == device:
                index = attributes[_ATTR_DEV_INDEX]
                break
        else:
            raise OSError(errno.ENODEV, f"no RDMA device {device}")
        attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(index), _ATTR_DEV_INDEX) + index
        answers = _ask(sock, _CMD_RES_GET, 0, attribute)
    return parse_summary(answers[0]) if answers else {}
