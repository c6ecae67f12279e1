package hostmem

import (
	"os"
	"testing"
	"testing/fstest"
)

// A region takes its own length of the address space while it is open, and nothing after Close: what large regions map
// in excess to find a huge page is given back at once.
func TestAddressesAreGivenBack(t *testing.T) {
	size := func() int64 {
		kib, err := field(os.DirFS("/"), "proc/self/status", "VmSize:")
		if err != nil {
			t.Fatal(err)
		}
		return kib << 10
	}
	const regions, bytes, slack = 1000, hugeBytes + PageBytes, 512 << 20 // the slack is for Go's own heap
	a, before := New(), size()
	var open []*Region
	for range regions {
		open = append(open, reserve(t, a, "test", bytes, AddressOnly))
	}
	if grown := size() - before - regions*bytes; grown > slack || grown < -slack {
		t.Errorf("%d bytes of addresses more than the regions have", grown)
	}
	for _, r := range open {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if left := size() - before; left > slack {
		t.Errorf("%d bytes of addresses are left after Close", left)
	}
}

// A limit without a count of what is used says nothing about what is left, and another source does.
func TestLimitWithoutUsage(t *testing.T) {
	n, source, err := available(fstest.MapFS{
		"proc/meminfo":             {Data: []byte("MemAvailable: 1000 kB\n")},
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte("5000\n")},
	})
	if n != 1000<<10 || source != machineSource || err != nil {
		t.Errorf("%d bytes from %q, %v", n, source, err)
	}
}
