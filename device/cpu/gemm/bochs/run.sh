#!/bin/bash
# Runs the machine code of tileAMX in a boot sector: run.sh BOCHS BIOS VGABIOS, from the root of the tree. Needs Go, gcc and ld.
set -eu
bochs=$(realpath "$1") bios=$(realpath "$2") vgabios=$(realpath "$3")
here=$PWD/device/cpu/gemm/bochs
dir=$(mktemp -d)
CGO_ENABLED=0 go test -c -o "$dir/gemm.test" ./device/cpu/gemm # go test by itself strips symbols
cd "$dir"
./gemm.test -test.run TestWriteBochsFile -bochs cases >/dev/null
gcc -c "$here/boot.S" -o boot.o
ld -N -Ttext 0x7c00 --oformat binary -o boot.img boot.o
truncate -s 1474560 boot.img
cp "$bios" BIOS-bochs-latest
cp "$vgabios" vgabios.bin
said=$(echo c | timeout 300 "$bochs" -q -f "$here/bochsrc" 2>/dev/null | grep -aoE '^[.X]*[SXND]$') || true
rm -r "$dir"
echo "${said:-Bochs said nothing}"
[[ $said =~ ^\.+S$ ]]
