"""File handles: name_to_handle_at(2) and open_by_handle_at(2).

handles.py name PATH...         prints the handle of each path
handles.py open MOUNT HANDLE... opens each handle and prints an errno, the content of a file, or the path
                                and the names of a directory
"""

import ctypes
import errno
import os
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
MAX_HANDLE_BYTES = 128


def name(path):
    handle = ctypes.create_string_buffer(struct.pack("Ii", MAX_HANDLE_BYTES, 0), 8 + MAX_HANDLE_BYTES)
    mount_id = ctypes.c_int()
    if LIBC.name_to_handle_at(AT_FDCWD, os.fsencode(path), handle, ctypes.byref(mount_id), 0) != 0:
        return errno.errorcode[ctypes.get_errno()]
    length = struct.unpack_from("I", handle)[0]
    return handle.raw[: 8 + length].hex()


def open_handle(mount, handle):
    handle = ctypes.create_string_buffer(bytes.fromhex(handle))
    fd = LIBC.open_by_handle_at(mount, handle, os.O_RDONLY)
    if fd < 0:
        return errno.errorcode[ctypes.get_errno()]
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        return " ".join([os.readlink(f"/proc/self/fd/{fd}"), *sorted(os.listdir(fd))])
    return os.read(fd, 4096).decode()


command, *rest = sys.argv[1:]
if command == "name":
    print("\n".join(name(path) for path in rest))
else:
    mount = os.open(rest[0], os.O_RDONLY)
    print("\n".join(open_handle(mount, handle) for handle in rest[1:]))
