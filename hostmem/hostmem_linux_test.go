//go:build linux && !race

package hostmem

import (
	"strings"
	"testing"
	"unsafe"
)

func TestPopulateMakesResident(t *testing.T) {
	const n = 80 << 20
	r := reserve(t, New(), "test", n)
	before, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	if uintptr(unsafe.Pointer(&r.Bytes()[0]))%hugeBytes != 0 {
		t.Error("a large region does not start on a huge page")
	}
	if err := r.Populate(); err != nil {
		t.Fatal(err)
	}
	after, _ := RSS()
	peak, _ := PeakRSS()
	if after-before < n*9/10 || peak < after {
		t.Errorf("resident: %d before, %d after, %d at the peak; the region has %d", before, after, peak, n)
	}
	r.Close()
	if now, _ := RSS(); now > after-n*9/10 {
		t.Errorf("%d resident after Close, %d before", now, after)
	}
}

// Too much is an error of one line that names the purpose and what to change, before anything is killed.
func TestShortage(t *testing.T) {
	n, _, err := Available()
	if err != nil {
		t.Fatal(err)
	}
	a := New()
	_, errReserve := a.Reserve("moments", 1<<50)
	r, err := a.Reserve("moments", n+1<<30)
	if err == nil { // the system lets one reserve it; using it must still fail
		t.Cleanup(func() { r.Close() })
		err = r.Populate()
	}
	for _, err := range []error{errReserve, err} {
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range []string{"moments", "GiB", "memory.host", "available"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q has several lines", err)
		}
	}
}

// Memory that is spread over nodes is memory like other: where there is one node, and where a node is not there at all.
func TestSpread(t *testing.T) {
	for _, nodes := range [][]int{{0}, {0, 1}, {1000, 5000, -1}, nil} {
		a := New()
		a.Spread(nodes)
		r := reserve(t, a, "test", 2*hugeBytes+5)
		if err := r.Populate(); err != nil {
			t.Fatal(err)
		}
		for i := range r.Bytes() {
			r.Bytes()[i] = byte(i)
		}
		if bytes, _ := a.Total(); bytes != 2*hugeBytes+PageBytes {
			t.Errorf("nodes %v: %d bytes", nodes, bytes)
		}
	}
}

// Without the user's word what is too large is refused before a page is touched; the line says how to give it.
func TestRefusalSaysHowToGrow(t *testing.T) {
	n, source, err := Available()
	if err != nil || source != machineSource {
		t.Skip("a cgroup limits this process, or the system does not tell")
	}
	r := reserve(t, New(), "moments", n+1<<30)
	if err = r.Populate(); err == nil || !strings.Contains(err.Error(), "MILLRACE_MEMORY_GROWS=1") {
		t.Errorf("%v: does not name the variable", err)
	}
}
