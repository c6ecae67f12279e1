package store_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

func TestRAM(t *testing.T) {
	storetest.Run(t, func(t testing.TB, specs []store.Spec) store.Store {
		s, err := store.NewRAM(hostmem.New(), specs)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// Extents that share are in one room as long as the longest of them; the others have their own.
func TestRAMIsShared(t *testing.T) {
	spec := func(part int, bytes int64, share int) store.Spec {
		return store.Spec{ID: store.ID{Part: part, Kind: store.Grad}, Bytes: bytes, Piece: 4096, Share: share}
	}
	specs := []store.Spec{spec(0, 100, 1), spec(1, 9000, 0), spec(2, 5000, 2), spec(3, 12000, 1), spec(4, 4096, 2), spec(5, 1, 0)}
	accounts := hostmem.New()
	s, err := store.NewRAM(accounts, specs)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const want = 12288 + 12288 + 8192 + 4096
	if now, _ := accounts.Total(); now != want || store.RAMBytes(specs)[store.Grad] != want {
		t.Errorf("%d bytes, foretold %d, want %d", now, store.RAMBytes(specs)[store.Grad], want)
	}
	first := map[int]*byte{}
	for _, spec := range specs {
		for off, n := range spec.Pieces() {
			l := borrow(t, s, trace.Update.Of(0), spec.ID, off, n, store.Write, 0)
			storetest.Pattern(l.Bytes(), spec.ID, off, 1)
			if off == 0 {
				first[spec.Part] = &l.Bytes()[0]
			}
			l.Release()
		}
		for off, n := range spec.Pieces() { // before the next one overwrites it
			l := borrow(t, s, trace.Update.Of(0), spec.ID, off, n, store.Read, 1)
			if !storetest.Matches(l.Bytes(), spec.ID, off, 1) {
				t.Errorf("%v at %d is not what was written", spec.ID, off)
			}
			l.Release()
		}
	}
	if first[0] != first[3] || first[2] != first[4] || first[0] == first[2] || first[1] == first[5] {
		t.Errorf("extents begin at %v", first)
	}
}

// A store that cannot have all of its memory has none.
func TestRAMThatDoesNotFit(t *testing.T) {
	accounts := hostmem.New()
	_, err := store.NewRAM(accounts, []store.Spec{
		{ID: store.ID{Kind: store.Weights}, Bytes: 4096, Piece: 4096},
		{ID: store.ID{Kind: store.Grad}, Bytes: 1 << 57, Piece: 1 << 57},
	})
	if now, peak := accounts.Total(); err == nil || now != 0 || peak != 4096 {
		t.Errorf("%d bytes are left of %d, error %v", now, peak, err)
	}
}

// What does not fit a region is in the next one; an extent is never in two.
func TestRAMOfSeveralRegions(t *testing.T) {
	var specs []store.Spec
	for part := range 5 {
		specs = append(specs, store.Spec{ID: store.ID{Part: part, Kind: store.Weights}, Bytes: int64(10+10*part) << 30, Piece: 1 << 30})
	}
	s, err := store.NewRAM(hostmem.New(), specs, hostmem.AddressOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var regions []*hostmem.Region
	var offs []int64
	for _, spec := range specs {
		first := borrow(t, s, trace.Update.Of(0), spec.ID, 0, 1<<30, store.Write, 0)
		last := borrow(t, s, trace.Update.Of(0), spec.ID, spec.Bytes-(1<<30), 1<<30, store.Write, 0)
		if last.Region != first.Region || last.Off+last.Len-first.Off != spec.Bytes || last.Off+last.Len > first.Region.Len() {
			t.Errorf("%v of %d bytes is from %d to %d of a region of %d", spec.ID, spec.Bytes, first.Off, last.Off+last.Len, first.Region.Len())
		}
		if regions = append(regions, first.Region); first.Off == 0 {
			offs = append(offs, int64(spec.Part))
		}
		first.Release()
		last.Release()
	}
	// 10 + 20 + 30 GiB are in the first region, 40 in the second, 50 in the third.
	if regions[0] != regions[1] || regions[1] != regions[2] || !slices.Equal(offs, []int64{0, 3, 4}) {
		t.Errorf("regions begin with the extents %d", offs)
	}
}

func TestPartSpecsLeaveFrozenTensorsOut(t *testing.T) {
	l, err := tensor.NewLayout(
		tensor.Field{Name: "a", Shape: tensor.Shape{3, 5}, Trainable: true},
		tensor.Field{Name: "b", Shape: tensor.Shape{100, 7}})
	if err != nil {
		t.Fatal(err)
	}
	each := store.Each
	forms := store.Forms{each(tensor.BF16), each(tensor.I16), each(tensor.BF16), each(tensor.F32), {Type: tensor.U8,
		Per: 2}}
	got := map[store.Kind]int64{}
	for _, s := range store.PartSpecs(3, l, forms, 512) {
		got[s.Kind] = s.Bytes
	}
	want := map[store.Kind]int64{store.Weights: 2 * (256 + 768), store.Low: 512, store.Grad: 512,
		store.FirstMoment: 1024, store.SecondMoment: 128}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%v: %d bytes, want %d", k, got[k], n)
		}
	}
}

// Pieces with the same number hold the same parameters in every kind, and each scale is in the piece of its block.
func TestPiecesOfScales(t *testing.T) {
	l, err := tensor.NewLayout(tensor.Field{Name: "a", Shape: tensor.Shape{5 * 1024}, Trainable: true})
	if err != nil {
		t.Fatal(err)
	}
	forms := store.Forms{store.Weights: store.Each(tensor.BF16), store.FirstMoment: store.Each(tensor.U8),
		store.FirstScale: {Type: tensor.F32, Per: tensor.MomentBlock}, store.SecondMoment: {Type: tensor.U8, Per: 2},
		store.SecondScale: {Type: tensor.F32, Per: tensor.MomentBlock4}}
	const piece = 2048
	for _, s := range store.PartSpecs(0, l, forms, piece) {
		at, pieces := int64(0), 0
		for off, n := range s.Pieces() {
			if want := forms[s.Kind].Bytes(at); off != want {
				t.Errorf("%v: piece %d begins at byte %d, want %d", s.Kind, pieces, off, want)
			}
			if want := forms[s.Kind].Bytes(min(piece, 5*1024-at)); n != want {
				t.Errorf("%v: piece %d has %d bytes, want %d", s.Kind, pieces, n, want)
			}
			at, pieces = at+piece, pieces+1
		}
		if pieces != 3 {
			t.Errorf("%v: %d pieces", s.Kind, pieces)
		}
	}
}

// Memory that one reader has, or one writer, is not given back.
func TestRAMClosedWhileLent(t *testing.T) {
	for _, access := range []store.Access{store.Read, store.Write} {
		spec := store.Spec{ID: weightsOf(0), Bytes: 1536, Piece: 1024}
		s, err := store.NewRAM(hostmem.New(), []store.Spec{spec})
		if err != nil {
			t.Fatal(err)
		}
		lease := borrow(t, s, trace.Fetch.Of(0), spec.ID, 1024, 512, access, 0)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic: access %v", access)
				}
			}()
			s.Close()
		}()
		lease.Release()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
