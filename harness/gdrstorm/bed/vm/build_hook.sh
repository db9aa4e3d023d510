#!/bin/sh
# mmdebstrap's customize hook: kernel and QEMU from backports, into the tree at $1.
# apt runs outside the tree with mmdebstrap's own configuration, so proxies, certificates and signatures are checked
# by the host's apt. BED_SUITE names the backports suite; BED_MIN_KERNEL and BED_MIN_QEMU are the oldest accepted.
set -eu
tree=$1
suite=$BED_SUITE
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" DEBIAN_FRONTEND=noninteractive

say() { echo "BED: $*"; }
field() { apt-cache show "$1" | sed -n "s/^$2: //p" | head -n 1; }
check() { # package, oldest upstream version
    version=$(field "$1/$suite" Version)
    dpkg --compare-versions "${version#*:}" ge "$2" || {
        say "too-old $1 ${version:-none} $2"
        exit 1
    }
    say "version $1 $version"
}

check linux-image-amd64 "$BED_MIN_KERNEL"
check qemu-system-x86 "$BED_MIN_QEMU"

# linux-image-amd64 depends on linux-image-RELEASE and that on what holds its files; taken apart without dpkg,
# because installing it would want an initramfs generator and the bed makes its own initramfs
image=$(field "linux-image-amd64/$suite" Depends | tr ',|' '\n\n' | sed -n 's/^ *\(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
[ -n "$image" ] || {
    say "cannot tell which kernel linux-image-amd64 means"
    exit 1
}
release=${image#linux-image-}
parts=$(field "$image/$suite" Depends | tr ',|' '\n\n' | sed -n "s/^ *\(linux-[a-z]*-$release\) .*/\1/p" | sort -u)

say "step downloading kernel $release"
mkdir "$tree/bed-kernel"
(
    cd "$tree/bed-kernel"
    # shellcheck disable=SC2086
    apt-get download -o APT::Sandbox::User=root "$image/$suite" $(for part in $parts; do echo "$part/$suite"; done)
)
say "step unpacking kernel $release"
for file in "$tree"/bed-kernel/*.deb; do
    # through tar: dpkg -x would replace the link /lib of a merged-usr tree by a directory
    dpkg-deb --fsys-tarfile "$file" | tar -x --keep-directory-symlink -C "$tree"
done
rm -r "$tree/bed-kernel"
chroot "$tree" depmod "$release"
say "kernel $release"

say "step installing QEMU"
apt-get -y --no-install-recommends -t "$suite" \
    -o Dir::Bin::dpkg=env -o DPkg::Options::=--unset=TMPDIR -o DPkg::Options::=dpkg \
    -o DPkg::Chroot-Directory="$tree" -o Dpkg::Use-Pty=false install qemu-system-x86
