#!/bin/busybox sh
# Second stage of the guest, PID 1 on the real root: file systems, modules, network; the agent starts beside it.
# Everything it is told comes as gdrstorm.NAME=VALUE on the kernel command line (see qemu.kernel_cmdline).
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=linux
export PYTHONPATH=/gdrstorm/lib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 GDRSTORM_GUEST=1

# A process costs some 15 ms under TCG, so this file reads with the shell's own means where it can.
bb() { /bin/busybox "$@"; }
say() { echo "gdrstorm: $*" >/dev/kmsg; }

load= rxe= share= modules_share= bars=
read -r words </proc/cmdline
set -f
for word in $words; do
    case $word in
    gdrstorm.load=*) load=${word#*=} ;;
    gdrstorm.rxe=*) rxe=1 ;;
    gdrstorm.share=*) share=1 ;;
    gdrstorm.modules_share=*) modules_share=1 ;;
    gdrstorm.bars=*) bars=1 ;;
    esac
done
set +f

bb mount -t tmpfs -o mode=755 run /run
bb mount -t tmpfs tmp /tmp
bb mkdir -p /dev/pts /dev/shm /run/gdrstorm /dev/virtio-ports
# the agent first: its start is the longest single wait, and it waits itself for its port and for `ready`
ulimit -l unlimited
python3 -S -m gdrstorm.bed.vm.guest.agent </dev/null >/dev/console 2>&1 &
agent=$!
bb mount -t devpts -o ptmxmode=666 devpts /dev/pts
bb mount -t tmpfs shm /dev/shm
bb ln -sf /proc/self/fd /dev/fd

# virtio ports get their names from udev elsewhere; there is none here
for port in /sys/class/virtio-ports/*; do
    [ -e "$port/name" ] || continue
    read -r name <"$port/name"
    bb ln -sf "../${port##*/}" "/dev/virtio-ports/$name"
done
bb mount -t debugfs debugfs /sys/kernel/debug
bb mount -t tracefs tracefs /sys/kernel/tracing
bb mount -t configfs configfs /sys/kernel/config 2>/dev/null
bb mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
echo gdrstorm >/proc/sys/kernel/hostname
bb ip link set lo up
echo 1 >/proc/sys/kernel/sysrq
# an idle guest is to sleep: no compaction ahead of need, no samples of who uses which page
echo 0 2>/dev/null >/proc/sys/vm/compaction_proactiveness
damon=/sys/module/damon_stat/parameters/enabled
[ -e $damon ] && echo N >$damon
opt=ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000
if [ -n "$modules_share" ]; then
    bb mkdir -p "/lib/modules/$(bb uname -r)"
    bb mount -t 9p -o $opt modules "/lib/modules/$(bb uname -r)" || say "cannot mount the modules"
fi
if [ -n "$share" ]; then
    bb mkdir -p /gdrstorm/share
    bb mount -t 9p -o "ro,trans=virtio,version=9p2000.L,msize=512000" share /gdrstorm/share || say "cannot mount the share"
fi
bb mkdir -p /etc/modprobe.d
echo "options vfio_iommu_type1 allow_unsafe_interrupts=1" >/etc/modprobe.d/gdrstorm.conf
# the command by its name; the package itself is on PYTHONPATH
printf '#!/bin/sh\nexec python3 -m gdrstorm "$@"\n' >/usr/local/bin/gdrstorm
bb chmod 755 /usr/local/bin/gdrstorm

if [ -n "$load" ]; then
    IFS=,
    set -- $load
    unset IFS
    modprobe -a "$@" 2>/run/gdrstorm/modprobe.log || while read -r line; do say "$line"; done </run/gdrstorm/modprobe.log
fi

# RoCE: one address a port, so that GIDs exist; 10.9.N.1/24 for the Nth HCA
number=0
for net in /sys/class/infiniband/mlx5_*/device/net/*; do
    [ -e "$net" ] || continue
    name=${net##*/}
    read -r type <"$net/type"
    [ "$type" = 1 ] && bb ip addr add "10.9.$number.1/24" dev "$name"
    bb ip link set "$name" up
    number=$((number + 1))
done
if [ -n "$rxe" ]; then
    bb ip link add rxenet0 type dummy && bb ip addr add 10.9.100.1/24 dev rxenet0 && bb ip link set rxenet0 up
    rdma link add rxe0 type rxe netdev rxenet0 || say "cannot make rxe0"
fi
# the BARs (ivshmem, 1af4:1110) go to vfio-pci: the kernel has no other driver for them
[ -n "$bars" ] && for device in /sys/bus/pci/devices/*; do
    read -r vendor <"$device/vendor"
    read -r model <"$device/device"
    if [ "$vendor $model" = "0x1af4 0x1110" ]; then
        echo vfio-pci >"$device/driver_override"
        echo "${device##*/}" >/sys/bus/pci/drivers_probe
    fi
done
: >/run/gdrstorm/ready

wait $agent
say "agent ended with status $?"
bb poweroff -f
