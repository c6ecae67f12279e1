package store

import (
	"io"
	"slices"
	"time"
)

// Drive is a place for files of a [Disk]: a directory on a drive that others of the disk are not on.
type Drive struct {
	Dir string // made if need be; for this store alone
	// Rest tells how long each worker that has read or written a piece rests, by the time that it was busy, such as for a
	// drive that is hot; nil: no worker rests. Workers call it, also at once.
	Rest func(busy time.Duration) time.Duration
}

// Deal says which drive has a piece. The pieces of a kind are numbered, those of lower parts first; the one with number
// n has drive Deal[n%len(Deal)], where numbers of a kind begin at the kind's own. A nil Deal gives all to drive 0.
//
// A deal goes by pieces and not by extents, so that a lane which reads one extent has all drives work for it, and the
// bytes of each drive are its share to a few pieces. It follows from the extents and the shares alone, and a checkpoint
// has no trace of it: a run that continues may deal to other drives.
type Deal []uint8

// NewDeal deals by shares, one for each drive: of as many pieces as all shares together each drive has its share, and
// of fewer in a row as nearly as can be. A share of 0 gives a drive nothing.
func NewDeal(shares []int) Deal {
	total := 0
	for _, share := range shares {
		total += share
	}
	deal, owed := make(Deal, total), make([]int, len(shares))
	for i := range deal {
		for drive, share := range shares {
			owed[drive] += share
		}
		most := 0
		for drive := range owed {
			if owed[drive] > owed[most] {
				most = drive
			}
		}
		owed[most] -= total
		deal[i] = uint8(most)
	}
	return deal
}

// drive is the one that has the piece with a number.
func (d Deal) drive(number int) int {
	if len(d) == 0 {
		return 0
	}
	return int(d[number%len(d)])
}

// among adds to counts, by drive, how many pieces each has of n in a row from one with a number on.
func (d Deal) among(counts []int, number, n int) {
	if len(d) == 0 {
		counts[0] += n
		return
	}
	if whole := n / len(d); whole > 0 {
		for _, drive := range d {
			counts[drive] += whole
		}
	}
	for i := range n % len(d) {
		counts[d.drive(number+i)]++
	}
}

// drives is the number of drives that have pieces, or have one with pieces after them.
func (d Deal) drives() int {
	if len(d) == 0 {
		return 1
	}
	return int(slices.Max(d)) + 1
}

// numbers returns the number of the first piece of each extent.
func numbers(specs []Spec) map[ID]int {
	sorted := slices.Clone(specs)
	slices.SortFunc(sorted, func(a, b Spec) int { return a.Part - b.Part })
	first, next := make(map[ID]int, len(specs)), [Kinds]int{}
	for kind := range next {
		next[kind] = kind
	}
	for _, s := range sorted {
		first[s.ID] = next[s.Kind]
		next[s.Kind] += s.pieceCount()
	}
	return first
}

// pieceCount is the number of an extent's pieces.
func (s Spec) pieceCount() int { return int((s.Bytes + s.Piece - 1) / s.Piece) }

// drive is a Drive at work: its directory, its files, and what its workers are to read and to write.
type drive struct {
	Drive
	lock   io.Closer
	made   []string // directories that were not there before, leaf first
	direct int      // the flag of direct I/O, or 0

	urgent, later []*buffer // to be read for a lane that waits; to be read ahead or written

	free    map[int64][]*file // by length
	files   int               // ever made
	copies  bool              // it was logged that files are copied
	written int64             // bytes
}

// WrittenBytes are the bytes that were written to each drive so far, in whole blocks.
func (d *Disk) WrittenBytes() []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []int64
	for _, v := range d.drives {
		all = append(all, v.written)
	}
	return all
}
