package hostmem

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
)

// vm is a machine that adds memory as it is used: up to most bytes, and aheadBytes more than are in use after each
// look.
type vm struct {
	mu                      sync.Mutex
	used, total, most       int64
	aheadBytes, othersBytes int64 // othersBytes: taken by another program at each look
	least                   int64 // that was ever left
	looks, pauses           int
}

func (m *vm) available() (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	m.used += m.othersBytes
	m.total = max(m.total, min(m.most, m.used+m.aheadBytes))
	return m.total - m.used, nil
}

func (m *vm) pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pauses++
}

func (m *vm) populate(_, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += n
	m.least = min(m.least, m.total-m.used)
	return nil
}

// A machine that grows gives all that it has, one that does not gives what it has, and neither is ever used up.
func TestGrowth(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name    string
		m       *vm
		bytes   int64
		workers int
		want    error
		pauses  int
	}{
		{"grows", &vm{total: gib, most: 200 * gib, aheadBytes: gib}, 100 * gib, 8, nil, 0},
		{"grows, one worker", &vm{total: gib, most: 200 * gib, aheadBytes: gib}, 100 * gib, 1, nil, 0},
		{"grows by hardly more than a piece", &vm{most: 200 * gib, aheadBytes: populatePiece + growthSpareBytes}, 10 * gib, 8,
			nil, 0},
		{"grows to less", &vm{total: gib, most: 50 * gib, aheadBytes: gib}, 100 * gib, 8, errNoGrowth, growthLooks},
		{"does not grow", &vm{total: 20 * gib, most: 20 * gib, aheadBytes: gib}, 30 * gib, 8, errNoGrowth, growthLooks},
		{"has what is asked for, and not the spare", &vm{total: 5 * gib, most: 5 * gib}, 5 * gib, 4, errNoGrowth,
			growthLooks},
		{"others take it", &vm{total: 9 * gib, most: 9 * gib, othersBytes: populatePiece}, 8 * gib, 1, errNoGrowth,
			growthLooks},
	} {
		m := c.m
		m.least = m.most
		err := inPieces(c.bytes, c.workers, newGrowth(m.available, m.pause), m.populate)
		if !errors.Is(err, c.want) || m.pauses != c.pauses {
			t.Errorf("%s: %v after %d pauses, want %v after %d", c.name, err, m.pauses, c.want, c.pauses)
		}
		if m.least < growthSpareBytes {
			t.Errorf("%s: only %d bytes were left", c.name, m.least)
		}
		if err == nil && m.used != c.bytes || err != nil && m.othersBytes == 0 &&
			m.used < m.most-growthSpareBytes-populatePiece {
			t.Errorf("%s: %d bytes are populated", c.name, m.used)
		}
	}
}

// Pieces cover all bytes once, and an error ends them.
func TestInPieces(t *testing.T) {
	var mu sync.Mutex
	var got []int64
	err := inPieces(3*populatePiece+5, 2, nil, func(off, n int64) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, off, n)
		return nil
	})
	ends := map[int64]int64{}
	for p := range slices.Chunk(got, 2) {
		ends[p[0]] = p[1]
	}
	if err != nil || len(ends) != 4 || ends[0] != populatePiece || ends[2*populatePiece] != populatePiece ||
		ends[3*populatePiece] != 5 {
		t.Errorf("%v: pieces %v", err, got)
	}
	last := int64(-1)
	if err := inPieces(1, 2, nil, func(_, n int64) error { last = n; return nil }); err != nil || last != 1 {
		t.Errorf("a byte: a piece of %d, error %v", last, err)
	}
	calls, broken := 0, errors.New("broken")
	if err := inPieces(1000*populatePiece, 1, nil, func(off, n int64) error { calls++; return broken }); err != broken ||
		calls != 1 {
		t.Errorf("%v after %d pieces", err, calls)
	}
	unknown := newGrowth(func() (int64, error) { return 0, broken }, func() {})
	if err := inPieces(9*populatePiece, 3, unknown, func(off, n int64) error { return nil }); err != broken {
		t.Errorf("available memory that cannot be told: %v", err)
	}
}

// A request beyond the available memory is tried only if the user asks for it, and never beyond a cgroup's limit.
func TestMustGrow(t *testing.T) {
	for _, c := range []struct {
		bytes, available, cgroups int64
		word                      bool
		want                      bool
		err                       error
	}{
		{10, 10, 10, false, false, nil},
		{10, 10, 10, true, false, nil},
		{11, 10, 100, false, false, errShort},
		{11, 10, 100, true, true, nil},
		{100, 10, 100, true, true, nil},
		{101, 10, 100, true, false, errShort},
	} {
		a := New()
		a.GrowOnUse(c.word)
		asked := false
		got, err := a.mustGrow(c.bytes, c.available, func() int64 { asked = true; return c.cgroups })
		if got != c.want || err != c.err || asked && c.bytes <= c.available {
			t.Errorf("%+v: %v, %v; the cgroups were asked: %v", c, got, err, asked)
		}
	}
}

// Workers that find room for one piece alone take turns: each waits until the piece before has landed, and looks again.
func TestGrowthTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowth(func() (int64, error) { return growthSpareBytes + populatePiece, nil }, func() {})
		begun, land := 0, make(chan struct{})
		go func() {
			for piece := range 4 {
				synctest.Wait() // all the others wait
				if begun != piece+1 {
					t.Errorf("%d pieces have begun when %d have landed", begun, piece)
				}
				land <- struct{}{}
			}
		}()
		err := inPieces(4*populatePiece, 3, g, func(_, _ int64) error { begun++; <-land; return nil })
		if err != nil || begun != 4 {
			t.Errorf("%d pieces, error %v", begun, err)
		}
	})
}

// Memory that others gave up to the swap space is no growth; memory that comes back from there is not less.
func TestSwappedOutIsNoGrowth(t *testing.T) {
	meminfo := func(available, swapFree string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("MemAvailable: " + available + " kB\nSwapFree: " + swapFree + " kB\n")}
	}
	root := fstest.MapFS{"proc/meminfo": meminfo("9000", "1000")}
	g := systemGrowth(root)
	for _, c := range []struct {
		available, swapFree string
		want                int64
	}{
		{"9000", "1000", 9000 << 10}, {"9500", "600", 9100 << 10}, {"9000", "1700", 9000 << 10}, {"9000", "999", 8999 << 10},
	} {
		root["proc/meminfo"] = meminfo(c.available, c.swapFree)
		if got, err := g.available(); got != c.want || err != nil {
			t.Errorf("%s kB and %s kB of swap space: %d bytes, error %v", c.available, c.swapFree, got, err)
		}
	}
	delete(root, "proc/meminfo")
	if _, err := g.available(); !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v", err)
	}
}

// The least of what the limits leave counts, and nothing below 0.
func TestCgroupLeft(t *testing.T) {
	number := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	root := fstest.MapFS{
		"proc/self/cgroup":               number("0::/a\n"),
		"sys/fs/cgroup/memory.max":       number("900\n"),
		"sys/fs/cgroup/memory.current":   number("300\n"),
		"sys/fs/cgroup/a/memory.max":     number("500\n"),
		"sys/fs/cgroup/a/memory.current": number("100\n"),
	}
	if got := cgroupLeft(root); got != 400 {
		t.Errorf("%d bytes are left", got)
	}
	// More page cache than there is in use: all of the limit is left.
	root["sys/fs/cgroup/a/memory.stat"] = number("inactive_file 200\n")
	if got := cgroupLeft(root); got != 500 {
		t.Errorf("%d bytes are left", got)
	}
	root["sys/fs/cgroup/memory.current"] = number("1300\n")
	if got := cgroupLeft(root); got != 0 {
		t.Errorf("%d bytes are left", got)
	}
	if got := cgroupLeft(fstest.MapFS{}); got != math.MaxInt64 {
		t.Errorf("without limits %d bytes are left", got)
	}
}
