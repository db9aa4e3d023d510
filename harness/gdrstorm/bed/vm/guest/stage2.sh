#!/bin/busybox sh
# Second stage of the guest, PID 1 on the real root: file systems, modules, network; the agent starts beside it.
# Everything it is told comes as gdrstorm.NAME=VALUE on the kernel command line (see qemu.kernel_cmdline).
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=linux
export PYTHONPATH=/gdrstorm/lib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 GDRSTORM_GUEST=1

# busybox applets run without another exec of a big binary; the first word says so
bb() { /bin/busybox "$@"; }
option() { bb sed -n "s/.*gdrstorm\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
say() { echo "gdrstorm: $*" >/dev/kmsg; }

bb mount -t tmpfs -o mode=755 run /run
bb mount -t tmpfs tmp /tmp
bb mkdir -p /dev/pts /dev/shm /run/gdrstorm
bb mount -t devpts -o ptmxmode=666 devpts /dev/pts
bb mount -t tmpfs shm /dev/shm
bb ln -sf /proc/self/fd /dev/fd

# virtio ports get their names from udev elsewhere; there is none here
bb mkdir -p /dev/virtio-ports
for port in /sys/class/virtio-ports/*; do
    [ -e "$port/name" ] && bb ln -sf "../${port##*/}" "/dev/virtio-ports/$(bb cat "$port/name")"
done
python3 -S -m gdrstorm.bed.vm.guest.agent </dev/null >/dev/console 2>&1 &
agent=$!

bb mount -t debugfs debugfs /sys/kernel/debug
bb mount -t tracefs tracefs /sys/kernel/tracing
bb mount -t configfs configfs /sys/kernel/config 2>/dev/null
bb mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
bb hostname gdrstorm
bb ip link set lo up
bb sysctl -q -w kernel.sysrq=1
ulimit -l unlimited
opt=ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000
if [ -n "$(option modules_share)" ]; then
    bb mkdir -p "/lib/modules/$(bb uname -r)"
    bb mount -t 9p -o $opt modules "/lib/modules/$(bb uname -r)" || say "cannot mount the modules"
fi
if [ -n "$(option share)" ]; then
    bb mkdir -p /gdrstorm/share
    bb mount -t 9p -o "ro,trans=virtio,version=9p2000.L,msize=512000" share /gdrstorm/share || say "cannot mount the share"
fi
bb mkdir -p /etc/modprobe.d
echo "options vfio_iommu_type1 allow_unsafe_interrupts=1" >/etc/modprobe.d/gdrstorm.conf

modules=$(option load | bb tr ',' ' ')
if [ -n "$modules" ]; then
    modprobe -a $modules 2>/run/gdrstorm/modprobe.log || while read -r line; do say "$line"; done </run/gdrstorm/modprobe.log
fi

# RoCE: one address a port, so that GIDs exist; 10.9.N.1/24 for the Nth HCA
number=0
for net in /sys/class/infiniband/mlx5_*/device/net/*; do
    [ -e "$net" ] || continue
    name=${net##*/}
    [ "$(bb cat "$net/type")" = 1 ] && bb ip addr add "10.9.$number.1/24" dev "$name"
    bb ip link set "$name" up
    number=$((number + 1))
done
if [ -n "$(option rxe)" ]; then
    bb ip link add rxenet0 type dummy && bb ip addr add 10.9.100.1/24 dev rxenet0 && bb ip link set rxenet0 up
    rdma link add rxe0 type rxe netdev rxenet0 || say "cannot make rxe0"
fi
# the BARs (ivshmem, 1af4:1110) go to vfio-pci: the kernel has no other driver for them
for device in /sys/bus/pci/devices/*; do
    if [ "$(bb cat "$device/vendor" "$device/device" | bb tr -d '\n')" = 0x1af40x1110 ]; then
        echo vfio-pci >"$device/driver_override"
        echo "${device##*/}" >/sys/bus/pci/drivers_probe
    fi
done
: >/run/gdrstorm/ready

wait $agent
say "agent ended with status $?"
bb poweroff -f
