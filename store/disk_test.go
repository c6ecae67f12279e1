package store_test

import (
	"log/slog"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/surroundings"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/store/storetest"
	"github.com/millrace/millrace/vfs"
)

func TestMain(m *testing.M) {
	if err := surroundings.Leave(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// quota gives every lane n buffers of every kind.
func quota(n int) store.Quota {
	var q store.Quota
	for lane := range q {
		for kind := range q[lane] {
			q[lane][kind] = n
		}
	}
	return q
}

// at are drives with these directories.
func at(dirs ...string) (drives []store.Drive) {
	for _, dir := range dirs {
		drives = append(drives, store.Drive{Dir: dir})
	}
	return drives
}

func openDisk(t testing.TB, o store.DiskOptions) *store.Disk {
	t.Helper()
	if o.Drives == nil {
		for range slices.Max(append(slices.Clone(o.Deal), 0)) + 1 {
			o.Drives = append(o.Drives, at(t.TempDir())...)
		}
	}
	if o.Accounts == nil {
		o.Accounts = hostmem.New()
	}
	if o.Quota == (store.Quota{}) {
		o.Quota = quota(1)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d, err := store.NewDisk(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDisk(t *testing.T) {
	for _, c := range []struct {
		name    string
		fs      func() vfs.FS
		quota   int
		workers int
		drives  int
	}{
		{"a real file system", func() vfs.FS { return vfs.OS{} }, 2, 0, 1},
		{"in memory, least quota", func() vfs.FS { return vfs.NewMem() }, 1, 1, 1},
		{"in memory", func() vfs.FS { return vfs.NewMem() }, 3, 3, 1},
		{"two drives, least quota", func() vfs.FS { return vfs.NewMem() }, 1, 1, 2},
		{"three drives", func() vfs.FS { return vfs.NewMem() }, 2, 2, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			var shares []int
			var drives []store.Drive
			for i := range c.drives {
				shares, drives = append(shares, 1+i), append(drives, at(t.TempDir())...)
			}
			storetest.Run(t, func(t testing.TB, specs []store.Spec) store.Store {
				return openDisk(t, store.DiskOptions{Drives: drives, Deal: store.NewDeal(shares), FS: c.fs(), Specs: specs,
					Quota:   quota(c.quota),
					Workers: c.workers, Crew: storetest.Crew})
			})
		})
	}
}

func TestTiered(t *testing.T) {
	storetest.Run(t, func(t testing.TB, specs []store.Spec) store.Store {
		var inRAM, onDisk []store.Spec
		for i, s := range specs {
			if i%2 == 0 {
				inRAM = append(inRAM, s)
			} else {
				onDisk = append(onDisk, s)
			}
		}
		ram, err := store.NewRAM(hostmem.New(), inRAM)
		if err != nil {
			t.Fatal(err)
		}
		disk := openDisk(t, store.DiskOptions{FS: vfs.NewMem(), Specs: onDisk, Crew: storetest.Crew})
		s := store.NewTiered(store.Tier{Store: ram, Specs: inRAM}, store.Tier{Store: disk, Specs: onDisk})
		if s.Of(inRAM[0].ID) != store.Store(ram) || s.Of(onDisk[0].ID) != store.Store(disk) {
			t.Error("extents are not where they were put")
		}
		if n := len(ram.Regions()) + len(disk.Regions()); len(s.Regions()) != n {
			t.Errorf("%d regions, want %d", len(s.Regions()), n)
		}
		return s
	})
}

func TestTiersShareNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an extent in two tiers does not panic")
		}
	}()
	specs := []store.Spec{{ID: store.ID{Part: 1, Kind: store.Weights}, Bytes: 4096, Piece: 4096}}
	store.NewTiered(store.Tier{Specs: specs, Store: &store.RAM{}}, store.Tier{Specs: specs, Store: &store.RAM{}})
}
