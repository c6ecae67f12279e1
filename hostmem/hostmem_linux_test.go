//go:build linux && !race

package hostmem

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
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

// Large regions begin at a huge page, wherever the addresses before them end, and ask for huge pages; small ones do not.
func TestHugePages(t *testing.T) {
	a := New()
	for i := range 20 {
		small := reserve(t, a, "test", hugeBytes-PageBytes)
		for _, bytes := range []int64{hugeBytes, hugeBytes + PageBytes} {
			r := reserve(t, a, "test", bytes)
			if at := uintptr(unsafe.Pointer(&r.Bytes()[0])); at%hugeBytes != 0 {
				t.Errorf("region %d of %d bytes begins at %#x", i, bytes, at)
			}
			if asks, known := asksForHugePages(t, &r.Bytes()[0]); known && !asks {
				t.Errorf("region %d of %d bytes does not ask for huge pages", i, bytes)
			}
		}
		if asks, _ := asksForHugePages(t, &small.Bytes()[0]); asks {
			t.Errorf("region %d of less than a huge page asks for one", i)
		}
	}
}

// asksForHugePages reads the flags of the mapping that has an address. Known is false where the system has none.
func asksForHugePages(t *testing.T, at *byte) (asks, known bool) {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		return false, false
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return false, false
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			address := uintptr(unsafe.Pointer(at))
			inside = from <= address && address < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return slices.Contains(strings.Fields(flags), "hg"), true
		}
	}
	return false, false
}

// residentPages counts those of a region. The test is skipped where the system does not tell.
func residentPages(t *testing.T, r *Region) (pages int64) {
	t.Helper()
	vec := make([]byte, r.ReservedBytes()/PageBytes)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&r.Bytes()[0])), uintptr(r.ReservedBytes()),
		uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		t.Skip("the system does not tell which pages are resident:", errno)
	}
	for _, v := range vec {
		pages += int64(v & 1)
	}
	return pages
}

// A second Populate does nothing: pages that the system took back stay away until they are used.
func TestPopulateOnce(t *testing.T) {
	r := reserve(t, New(), "test", 3<<20)
	if err := r.Populate(); err != nil {
		t.Fatal(err)
	}
	if got, want := residentPages(t, r), r.ReservedBytes()/PageBytes; got != want {
		t.Errorf("%d of %d pages are resident", got, want)
	}
	if err := unix.Madvise(r.Bytes(), unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	before := residentPages(t, r)
	if err := r.Populate(); err != nil {
		t.Fatal(err)
	}
	if got := residentPages(t, r); got != before {
		t.Errorf("%d pages are resident after the second call, %d before it", got, before)
	}
}

// Touching makes every page resident, also the last one, which the region has only a byte of.
func TestTouch(t *testing.T) {
	const n = 30<<20 + 1
	r := reserve(t, New(), "test", n)
	if got := residentPages(t, r); got != 0 {
		t.Skipf("%d pages are resident before", got)
	}
	r.Bytes()[5] = 7
	touch(unsafe.Pointer(&r.Bytes()[0]), n)
	if got, want := residentPages(t, r), int64(n/PageBytes+1); got != want || r.Bytes()[5] != 7 {
		t.Errorf("%d of %d pages are resident", got, want)
	}
}

// An error that is not of a lack of memory does not speak of machines that grow.
func TestShortageOfAnotherKind(t *testing.T) {
	err := shortage("reserve", "moments", 1<<20, unix.EPERM)
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "reserve 1.0 MiB of host memory for moments") ||
		strings.Contains(err.Error(), "MILLRACE_MEMORY_GROWS") {
		t.Errorf("error %v", err)
	}
	for bytes, want := range map[int64]string{1<<30 - 1<<20: "1023.0 MiB", 1 << 30: "1.00 GiB"} {
		if got := gib(bytes); got != want {
			t.Errorf("%d bytes are %s", bytes, got)
		}
	}
}

// The bits of nodes are where the kernel looks for them; it has no more than 1024.
func TestMaskOfNodes(t *testing.T) {
	for _, c := range []struct {
		nodes []int
		want  map[int]uint64
	}{
		{nil, nil}, {[]int{0}, map[int]uint64{0: 1}}, {[]int{1, 63, 64}, map[int]uint64{0: 1<<63 | 2, 1: 1}},
		{[]int{1023, 1024, 5000, -1}, map[int]uint64{15: 1 << 63}},
	} {
		for i, word := range maskOf(c.nodes) {
			if word != c.want[i] {
				t.Errorf("nodes %d: word %d is %#x, want %#x", c.nodes, i, word, c.want[i])
			}
		}
	}
}

// Regions of a huge page and more have the policy that Spread asks for, where the system lets them.
func TestSpreadIsAsked(t *testing.T) {
	policy := func(r *Region) (mode int32) {
		const byAddress = 2 // MPOL_F_ADDR
		_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), 0, 0,
			uintptr(unsafe.Pointer(&r.Bytes()[0])), byAddress, 0)
		if errno != 0 {
			t.Skip("the system does not tell the policy of memory:", errno)
		}
		return mode
	}
	plain, a := New(), New()
	a.Spread([]int{0})
	probe := reserve(t, plain, "test", hugeBytes)
	mask := maskOf([]int{0})
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&probe.Bytes()[0])), uintptr(hugeBytes), interleave,
		uintptr(unsafe.Pointer(&mask[0])), maskBits, 0)
	if errno != 0 {
		t.Skip("the system has no policies of memory:", errno)
	}
	for _, c := range []struct {
		accounts *Accounts
		bytes    int64
		want     int32
	}{{plain, hugeBytes, 0}, {a, hugeBytes, interleave}, {a, hugeBytes - PageBytes, 0}} {
		if got := policy(reserve(t, c.accounts, "test", c.bytes)); got != c.want {
			t.Errorf("%d bytes have policy %d, want %d", c.bytes, got, c.want)
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
