package hostmem

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func reserve(t testing.TB, a *Accounts, purpose string, n int64, opts ...Option) *Region {
	t.Helper()
	r, err := a.Reserve(purpose, n, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestRegion(t *testing.T) {
	a := New()
	for _, n := range []int64{0, 1, PageBytes, PageBytes + 1, hugeBytes - 1, hugeBytes, 3*hugeBytes + 5} {
		r := reserve(t, a, "test", n)
		if r.Len() != n || int64(len(r.Bytes())) != n || r.Purpose() != "test" || r.AddressOnly() {
			t.Fatalf("asked for %d bytes, got %d for %q", n, r.Len(), r.Purpose())
		}
		if want := (n + PageBytes - 1) / PageBytes * PageBytes; r.ReservedBytes() != want {
			t.Errorf("%d bytes count as %d, want %d", n, r.ReservedBytes(), want)
		}
		if err := r.Populate(); err != nil {
			t.Fatal(err)
		}
		for i, v := range r.Bytes() {
			if v != 0 {
				t.Fatalf("byte %d of %d is %d", i, n, v)
			}
			r.Bytes()[i] = byte(i)
		}
		if n > 0 && uintptr(unsafe.Pointer(&r.Bytes()[0]))%PageBytes != 0 {
			t.Errorf("%d bytes start at %p", n, &r.Bytes()[0])
		}
		for range 2 {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if r.Bytes() != nil {
			t.Error("a closed region still has bytes")
		}
	}
	if now, peak := a.Total(); now != 0 || peak != 3*hugeBytes+PageBytes {
		t.Errorf("%d bytes reserved after all was closed, %d at the peak", now, peak)
	}
}

func TestPopulateKeepsContents(t *testing.T) {
	r := reserve(t, New(), "test", populatePiece+3*PageBytes)
	r.Bytes()[0], r.Bytes()[PageBytes], r.Bytes()[r.Len()-1] = 1, 2, 3
	for range 2 {
		if err := r.Populate(); err != nil {
			t.Fatal(err)
		}
	}
	if b := r.Bytes(); b[0] != 1 || b[PageBytes] != 2 || b[len(b)-1] != 3 || b[populatePiece] != 0 {
		t.Error("Populate changed the contents")
	}
	touch(unsafe.Pointer(&r.Bytes()[0]), r.Len())
	if b := r.Bytes(); b[0] != 1 || b[PageBytes] != 2 {
		t.Error("touch changed the contents")
	}
}

// Many goroutines: the sums are right whatever the order.
func TestAccounts(t *testing.T) {
	a := New()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				r, err := a.Reserve(fmt.Sprint("purpose ", g%2), int64(i)*PageBytes)
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					r.Close()
				} else {
					t.Cleanup(func() { r.Close() })
				}
			}
		})
	}
	wg.Wait()
	const left = 4 * 100 * PageBytes // four goroutines, 1+3+...+19 pages
	got := a.Usage()
	for i := range got {
		if got[i].PeakBytes < left || got[i].PeakBytes > left+4*18*PageBytes {
			t.Errorf("peak of %q is %d", got[i].Purpose, got[i].PeakBytes)
		}
		got[i].PeakBytes = 0
	}
	if d := cmp.Diff([]PurposeBytes{{"purpose 0", left, 0}, {"purpose 1", left, 0}}, got); d != "" {
		t.Error(d)
	}
	if now, _ := a.Total(); now != 2*left {
		t.Errorf("total %d, want %d", now, 2*left)
	}
}

// Against a model that keeps a list.
func TestAccountsAreASum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New()
		var live []*Region
		want := map[string]*PurposeBytes{}
		defer func() {
			for _, r := range live {
				r.Close()
			}
		}()
		for range rapid.IntRange(1, 20).Draw(t, "operations") {
			if len(live) > 0 && rapid.Bool().Draw(t, "close") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				want[live[i].Purpose()].Bytes -= live[i].ReservedBytes()
				live[i].Close()
				live = append(live[:i], live[i+1:]...)
				continue
			}
			p := rapid.SampledFrom([]string{"weights", "moments"}).Draw(t, "purpose")
			r, err := a.Reserve(p, rapid.Int64Range(0, 1<<40).Draw(t, "bytes"), AddressOnly)
			if err != nil {
				t.Fatal(err)
			}
			live = append(live, r)
			if want[p] == nil {
				want[p] = &PurposeBytes{Purpose: p}
			}
			want[p].Bytes += r.ReservedBytes()
			want[p].PeakBytes = max(want[p].PeakBytes, want[p].Bytes)
		}
		var list []PurposeBytes
		for _, p := range want {
			list = append(list, *p)
		}
		sort.Slice(list, func(i, j int) bool { return list[i].Purpose < list[j].Purpose })
		if d := cmp.Diff(list, a.Usage()); d != "" {
			t.Fatal(d)
		}
		for _, p := range list {
			if got := a.Of(p.Purpose); got != p {
				t.Fatalf("the account is %+v, want %+v", got, p)
			}
		}
		if got := a.Of("absent"); got != (PurposeBytes{Purpose: "absent"}) {
			t.Fatalf("nothing was reserved: %+v", got)
		}
	})
}

// Rehearsals reserve more than any machine has, and an access is caught.
func TestAddressOnly(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("this system cannot reserve addresses")
	}
	a := New()
	r := reserve(t, a, "state", 1700<<30, AddressOnly)
	if now, _ := a.Total(); now != 1700<<30 || !r.AddressOnly() {
		t.Errorf("%d bytes counted", now)
	}
	if err := r.Populate(); err != nil {
		t.Error(err)
	}
	for _, i := range []int64{0, 900 << 30, r.Len() - 1} {
		if !faults(func() { sink = r.Bytes()[i] }) || !faults(func() { r.Bytes()[i] = 1 }) {
			t.Errorf("byte %d can be accessed", i)
		}
	}
}

var sink byte

func faults(f func()) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { faulted = recover() != nil }()
	f()
	return
}

func TestBadLengths(t *testing.T) {
	for _, n := range []int64{-1, math.MinInt64, math.MaxInt64, 1<<56 + 1} {
		if _, err := New().Reserve("weights", n); err == nil || !strings.Contains(err.Error(), "for weights: ") ||
			!strings.HasSuffix(err.Error(), "is not a length") {
			t.Errorf("Reserve(%d): %v", n, err)
		}
	}
}

func TestViews(t *testing.T) {
	r := reserve(t, New(), "test", 64)
	b := r.Bytes()
	F32(b)[1] = 1.5
	if bits := U16(b)[3]; bits != 0x3fc0 { // little-endian: the high half of float32 1.5
		t.Errorf("high half is %#x", bits)
	}
	F64(b)[1], I16(b)[8], I32(b)[5], U32(b)[6], I64(b)[4] = 2, -3, -4, 5, -6
	if F64(b)[1] != 2 || I16(b)[8] != -3 || I32(b)[5] != -4 || U32(b)[6] != 5 || I64(b)[4] != -6 || len(F64(b)) != 8 ||
		len(I16(b)) != 32 {
		t.Error("views do not agree")
	}
	if F32(nil) != nil || len(F32(b[:0])) != 0 || len(F32(b[2:2])) != 0 {
		t.Error("the view of nothing is something")
	}
	for what, f := range map[string]func(){
		"odd length":  func() { F32(b[:7]) },
		"odd address": func() { F32(b[2:6]) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}

func TestAvailable(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	meminfo := file("MemTotal:  64000 kB\nMemAvailable:  32000 kB\n")
	for _, c := range []struct {
		what   string
		root   fstest.MapFS
		want   int64
		source string
		total  int64
	}{
		{"no cgroup", fstest.MapFS{"proc/meminfo": meminfo}, 32000 << 10, "MemAvailable", 64000 << 10},
		{"version 2, limit above", fstest.MapFS{
			"proc/meminfo":                   meminfo,
			"proc/self/cgroup":               file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max":   file("max\n"),
			"sys/fs/cgroup/a/memory.max":     file("10000000\n"),
			"sys/fs/cgroup/a/memory.current": file("4000000\n"),
			"sys/fs/cgroup/a/memory.stat":    file("anon 1\ninactive_file 1500000\n"),
		}, 7500000, "/sys/fs/cgroup/a/memory.max", 10000000},
		{"version 2, soft limit", fstest.MapFS{
			"proc/meminfo":                 meminfo,
			"proc/self/cgroup":             file("0::/a\n"),
			"sys/fs/cgroup/a/memory.max":   file("20000000\n"),
			"sys/fs/cgroup/a/memory.high":  file("9000000\n"),
			"sys/fs/cgroup/memory.current": file("1\n"), "sys/fs/cgroup/a/memory.current": file("1000000\n"),
		}, 8000000, "memory.high", 9000000},
		{"a container that sees the host's path", fstest.MapFS{
			"proc/meminfo":                 meminfo,
			"proc/self/cgroup":             file("0::/kubepods/x\n"),
			"sys/fs/cgroup/memory.max":     file("5000000\n"),
			"sys/fs/cgroup/memory.current": file("6000000\n"),
		}, 0, "/sys/fs/cgroup/memory.max", 5000000},
		{"a path with a colon, no room at all", fstest.MapFS{
			"proc/meminfo":                     meminfo,
			"proc/self/cgroup":                 file("0::/a:b\n"),
			"sys/fs/cgroup/a:b/memory.max":     file("0\n"),
			"sys/fs/cgroup/a:b/memory.current": file("0\n"),
		}, 0, "/sys/fs/cgroup/a:b/memory.max", 0},
		{"version 1", fstest.MapFS{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": file("5:cpu:/x\n4:memory:/c\n0::/\n"),
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes": file("3000000\n"),
			"sys/fs/cgroup/memory/c/memory.usage_in_bytes": file("2000000\n"),
			"sys/fs/cgroup/memory/c/memory.stat":           file("total_inactive_file 500000\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   file("9223372036854771712\n"),
			"sys/fs/cgroup/memory/memory.usage_in_bytes":   file("2000000\n"),
		}, 1500000, "memory.limit_in_bytes", 3000000},
	} {
		got, source, err := available(c.root)
		if err != nil || got != c.want || !strings.Contains(source, c.source) {
			t.Errorf("%s: %d from %q, %v; want %d from %q", c.what, got, source, err, c.want, c.source)
		}
		if got, err := total(c.root); err != nil || got != c.total {
			t.Errorf("%s: %d in all, %v; want %d", c.what, got, err, c.total)
		}
	}
	if _, _, err := available(fstest.MapFS{}); err == nil {
		t.Error("a system that tells nothing gives no error")
	}
	if _, err := total(fstest.MapFS{}); err == nil {
		t.Error("a system that tells nothing gives no error for its total")
	}
	unlimited := fstest.MapFS{
		"proc/self/cgroup":                           file("4:memory:/\n"),
		"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		"sys/fs/cgroup/memory/memory.usage_in_bytes": file("2000000\n"),
	}
	if n, source, err := available(unlimited); err != ErrUnknown {
		t.Errorf("a cgroup of version 1 without a limit: %d bytes from %q, %v", n, source, err)
	}
}
