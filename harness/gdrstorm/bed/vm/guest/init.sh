#!/bin/busybox sh
# First stage of the guest, in the initramfs: load what the root file system needs, mount it, go there.
# Drivers that take long to load begin here too; their loading goes on beside the second stage.
# gdrstorm.proof on the kernel command line ends here: reaching this line is the proof that the accelerator works.
B=/bin/busybox
$B mkdir -p /dev /proc /sys /lower /rw /root
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
if $B grep -q gdrstorm.proof /proc/cmdline; then
    echo "gdrstorm: this accelerator works" >/dev/console
    $B poweroff -f
fi
insert() {
    while read -r module; do
        $B insmod "/modules/$module" || echo "gdrstorm: cannot load $module" >/dev/kmsg
    done
}
insert </modules/order
# not earlier: one module at a time passes through ftrace
insert </modules/background &
opt=ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000
$B mount -t 9p -o $opt tree /lower || echo "gdrstorm: cannot mount the tree over 9p" >/dev/kmsg
$B mount -t tmpfs -o mode=755 rw /rw
$B mkdir /rw/upper /rw/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /root
$B mkdir -p /root/gdrstorm/lib/gdrstorm
$B mount -t 9p -o $opt package /root/gdrstorm/lib/gdrstorm
for dir in dev proc sys; do $B mount -o move /$dir /root/$dir; done
# by hand: switch_root would delete the modules that are still to be loaded
cd /root && $B mount -o move . / && exec $B chroot . /bin/busybox sh /gdrstorm/lib/gdrstorm/bed/vm/guest/stage2.sh
