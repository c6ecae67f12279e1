package isa

import (
	"slices"
	"testing"

	"github.com/klauspost/cpuid/v2"
)

// VDPBF16PS is chosen where it is fast, and on no CPU that was not measured; every other level is the highest one.
func TestBestOfVendors(t *testing.T) {
	const made = cpuid.Vendor(1 << 20) // no maker has it
	for _, vendor := range []cpuid.Vendor{cpuid.AMD, cpuid.Intel, cpuid.VIA, cpuid.Hygon, cpuid.VendorUnknown, made} {
		for _, highest := range []Level{Plain, AVX2, AVX512, AVX512BF16, AMX} {
			want := highest
			if highest == AVX512BF16 && vendor != cpuid.AMD {
				want = AVX512
			}
			if got := best(highest, vendor); got != want {
				t.Errorf("vendor %v with %v computes at %v, want %v", vendor, highest, got, want)
			}
		}
	}
}

// A machine can be forced to every level up to the highest, and computes at one of them.
func TestAvailable(t *testing.T) {
	all := Available()
	if below := BestWithoutTiles(); below > Best() || below >= AMX {
		t.Errorf("without tiles %v, else %v", below, Best())
	}
	if all[0] != Plain || all[len(all)-1] != Highest() || !slices.IsSorted(all) || !slices.Contains(all, Best()) {
		t.Errorf("available %v, highest %v, best %v", all, Highest(), Best())
	}
}
