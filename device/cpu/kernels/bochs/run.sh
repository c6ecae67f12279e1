#!/bin/bash
# Runs tests of kernels with AVX-512 in the emulator Bochs: run.sh KERNEL [TEST-FLAG...], from the root of the tree, as root.
# KERNEL is a vmlinuz of Linux 6.1. Needs Go, and of Debian 12 bochs, bochs-term, bochsbios, vgabios, isolinux, syslinux-common,
# xorriso and cpio. See README.md.
set -eu
kernel=$(realpath "$1")
shift
flags=${*:-"-test.v -test.short -test.run=AdamW"} # flags of a test, without quotes
here=$PWD/device/cpu/kernels/bochs
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/root/dev" "$dir/iso"
# The collector of Go 1.26 uses instructions that Bochs 2.7 computes wrongly.
CGO_ENABLED=0 GOEXPERIMENT=nogreenteagc go test -c -o "$dir/root/kernels.test" ./device/cpu/kernels
cp -r device/cpu/kernels/testdata "$dir/root/"
cd "$dir"
mknod root/dev/console c 5 1 # where the first process writes
(cd root && find . | cpio -o -H newc 2>/dev/null | gzip -1) >iso/initrd.gz
cp "$kernel" iso/vmlinuz
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 iso/
# Bochs has faults in what clearcpuid hides: the layout of saved registers with PKU (515), XSAVEC (321) and XSAVES (323), and
# SMAP, SMEP, UMIP and FSRM (308, 295, 514, 580), of which one has Linux overwrite itself.
cat >iso/isolinux.cfg <<EOF
DEFAULT linux
LABEL linux
KERNEL vmlinuz
INITRD initrd.gz
APPEND console=ttyS0 quiet loglevel=1 nokaslr nosmp mitigations=off nopti nopcid noinvpcid clearcpuid=515,321,323,308,295,514,580 rdinit=/kernels.test -- $flags
EOF
xorriso -as mkisofs -quiet -o tests.iso -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table iso 2>/dev/null
echo c >commands
touch console
TERM=xterm script -qc "bochs -q -f $here/bochsrc -rc commands" /dev/null </dev/null >screen 2>&1 &
screen=$!
tail -n +1 -f --pid=$screen console | sed -u '/Attempted to kill init/q' # Linux ends with its first process
kill $screen 2>/dev/null || true
grep -q 'Attempted to kill init! exitcode=0x00000000' console
