package data

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/vfs"
)

// withColumns are two documents with a number and two of the three columns of tokens.
func withColumns() (all []document) {
	for i, n := range []int{3, 70} {
		d := document{Example: count(n), has: documentNumbers | tokenColumn(0) | tokenColumn(2) | withTeacher(2),
			number: float64(i) - 0.5}
		for _, c := range []int{0, 2, teacherColumn} {
			for t := range n * int(d.has.width(c)) {
				d.columns[c] = append(d.columns[c], float32(t)+float32(c)/2)
			}
		}
		all = append(all, d)
	}
	return all
}

// writeColumns writes a cache file of documents.
func writeColumns(t testing.TB, dir string, key xxh3.Uint128, all []document) (*part, error) {
	t.Helper()
	w, err := createCache(dir, key, Options{cacheFile: os.CreateTemp, freeBytes: vfs.OS{}.FreeBytes})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if err := w.appendDocument(d); err != nil {
			w.abandon()
			return nil, err
		}
	}
	return w.finish(t.Context(), 100, hostmem.New())
}

// columnsFile is a cache file of numbered documents.
func columnsFile(t testing.TB, key xxh3.Uint128) []byte {
	t.Helper()
	dir := t.TempDir()
	p, err := writeColumns(t, dir, key, withColumns())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.run.close(); err != nil {
		t.Fatal(err)
	}
	return readFile(t, cachePath(dir, key))
}

// TestColumnsComeBack: numbers of documents and of tokens are the same in memory, in a new file and in one that is
// opened again, and they are in the checksum.
func TestColumnsComeBack(t *testing.T) {
	key, dir := uint128([16]byte{7}), t.TempDir()
	b := newBuilder()
	for _, d := range withColumns() {
		if err := b.appendDocument(d); err != nil {
			t.Fatal(err)
		}
	}
	memory, err := b.finishInMemory(hostmem.New())
	if err != nil {
		t.Fatal(err)
	}
	written, err := writeColumns(t, dir, key, withColumns())
	if err != nil {
		t.Fatal(err)
	}
	read, err := readCache(t.Context(), dir, key, 100, hostmem.New())
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*part{"memory": memory, "written": written, "read": read} {
		if diff := cmp.Diff([]float64{-0.5, 0.5}, p.run.numbers); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for c := range tokenColumns {
			if p.run.columns[c] == nil {
				if c != 1 && c != int(TokenOld) && c != int(TokenValues) {
					t.Errorf("%s has no column %d", name, c)
				}
				continue
			}
			width := int(p.run.has.width(c))
			got := make([]float32, 71*width)
			if err := p.run.readColumn(c, got, int64(2*width)); err != nil {
				t.Fatal(err)
			}
			all := withColumns()
			if diff := cmp.Diff(slices.Concat(all[0].columns[c][2*width:], all[1].columns[c]), got); diff != "" {
				t.Errorf("%s, column %d: %s", name, c, diff)
			}
		}
		if p.run.sum != memory.run.sum {
			t.Errorf("%s: the sum is another", name)
		}
		if err := p.run.close(); err != nil {
			t.Error(err)
		}
	}
	other := withColumns()
	other[1].columns[2][69]++
	changed, err := writeColumns(t, dir, key, other)
	if err != nil || changed.run.sum == memory.run.sum {
		t.Errorf("another number has the same sum, or %v", err)
	}
	if err := changed.run.close(); err != nil {
		t.Error(err)
	}
}

// TestBadColumns: documents of one source have the same columns, of the length of their tokens, and numbers are finite.
func TestBadColumns(t *testing.T) {
	for want, change := range map[string]func(all []document){
		"it has other numbers than the rows before it": func(all []document) { all[1].has = documentNumbers },
		"column 2 has 69 numbers for 70 tokens":        func(all []document) { all[1].columns[2] = all[1].columns[2][:69] },
		"column 1 has 1 numbers for 3 tokens":          func(all []document) { all[0].columns[1] = []float32{1} },
		"the number of document 1 is NaN":              func(all []document) { all[1].number = math.NaN() },
	} {
		all := withColumns()
		change(all)
		if _, err := writeColumns(t, t.TempDir(), uint128([16]byte{}), all); err == nil || !strings.Contains(err.Error(),
			want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	all := withColumns()
	all[1].columns[0][4] = float32(math.Inf(1))
	p, err := writeColumns(t, t.TempDir(), uint128([16]byte{}), all)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.run.readColumn(0, make([]float32, 73), 0); err == nil || !strings.Contains(err.Error(),
		"the number of token 7 is +Inf") {
		t.Errorf("error %v", err)
	}
	if err := p.run.close(); err != nil {
		t.Error(err)
	}
}
