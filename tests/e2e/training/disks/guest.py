"""A guest under QEMU with a disk of which every write and flush can be logged. Needs root, QEMU, and a kernel with busybox
in the folder that FOREBAY_GUEST names (scripts/test --full fetches them). The processor is QEMU's own, which is slower than
KVM but there everywhere, and the same everywhere."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic", "crc32c_intel")
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod "/modules/$module"; done
mount -t ext4 /dev/vda /disk && sh -e /script && echo "guest: done"
sync
poweroff -f
"""


def need():
    """The folder of kernel and busybox. Skips the test with the reason where there can be no guest."""
    if os.geteuid() != 0:
        pytest.skip("mounting the disk of a guest needs root")
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("there is no qemu-system-x86_64")
    folder = os.environ.get("FOREBAY_GUEST")
    if not folder or not list(pathlib.Path(folder).glob("boot/vmlinuz-*")):
        pytest.skip("FOREBAY_GUEST names no folder with a kernel; scripts/test --full makes one")
    return pathlib.Path(folder)


def _modules(folder):
    """The modules of the kernel that the guest needs, each after those that it depends on."""
    files = {path.name.split(".")[0]: path for path in folder.glob("lib/modules/*/kernel/**/*.ko")}
    order = []

    def add(name):
        if name not in files or files[name] in order:
            return  # built in, or there already
        depends = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[name].read_bytes())
        for other in filter(None, depends[1].decode().split(",") if depends else []):
            add(other)
        order.append(files[name])

    for name in _MODULES:
        add(name)
    return order


def _libraries(program):
    """What the dynamic linker loads for it, the linker itself included."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", out)


def _archive(root, path):
    """An initramfs: the tree `root` in the format "newc" of cpio."""
    with open(path, "wb") as out:

        def entry(name, mode, data=b""):
            fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
            header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
            out.write(header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4))

        for file in sorted(root.rglob("*")):
            name = str(file.relative_to(root))
            if file.is_dir():
                entry(name, 0o40755)
            else:
                entry(name, 0o100755, file.read_bytes())
        entry("TRAILER!!!", 0)


class Guest:
    """What a guest boots: its first file system, in RAM, with `files` (a dict from path there to path here) and the
    program `binary` with its libraries."""

    def __init__(self, kernel_folder, work, binary, files):
        self._kernel = next(kernel_folder.glob("boot/vmlinuz-*"))
        self._image = work / "initramfs"
        root = work / "root"
        copies = {str(path)[1:]: path for path in _libraries(binary)}
        copies |= {"bin/busybox": next(kernel_folder.glob("bin/busybox")), "bin/forebay": binary} | files
        modules = _modules(kernel_folder)
        copies |= {f"modules/{path.name}": path for path in modules}
        for place in ("proc", "sys", "dev", "disk", "tmp"):
            (root / place).mkdir(parents=True)
        for place, path in copies.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / place)
        (root / "modules" / "order").write_text("\n".join(path.name for path in modules))
        (root / "init").write_text(_INIT)
        self._root = root

    def run(self, disk, script, log=None, timeout=300):
        """Boots with the image `disk`, mounted at /disk, and runs the shell script; its writes are logged to the file
        `log`. Returns what the guest printed."""
        (self._root / "script").write_text(script)
        _archive(self._root, self._image)
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"]
        command += ["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]
        command += ["-kernel", self._kernel, "-initrd", self._image, "-append", "console=ttyS0 quiet panic=-1"]
        command += ["-blockdev", f"driver=file,node-name=file,filename={disk}"]
        if log:
            pathlib.Path(log).write_bytes(b"")
            command += ["-blockdev", f"driver=file,node-name=log,filename={log}"]
            command += ["-blockdev", "driver=blklogwrites,node-name=logged,file=file,log=log,log-sector-size=512"]
        drive = "logged" if log else "file"
        command += ["-device", f"virtio-blk-pci,drive={drive},write-cache=on,discard=off,write-zeroes=off"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0 and "guest: done" in done.stdout, f"{done.stdout}\n{done.stderr}"
        return done.stdout
