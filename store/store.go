// Package store keeps the state of the parameters between steps and lends it to the lanes of the engine.
//
// State is kept in extents: one part's bytes of one kind. An extent is cut into pieces of one length, which are read
// and written as a whole. A lane borrows pieces, to read or to write, at the version that it expects, and releases
// them. Many leases may read a piece at once; a lease that writes is alone. The version of a piece is the number of
// writes it has seen. The schedule orders all accesses, so a wrong version or a clash of accesses is a bug of the
// caller and panics: training continues with the right numbers or not at all.
//
// [RAM] lends its own bytes. [Disk] lends staging buffers and keeps each version of a piece in a file of its own.
// [Tiered] makes one store of several. Package storetest is the suite that all pass. Saved layer inputs are an extent
// like the others: each step writes its next version, and no old one is kept.
//
// A store does not know devices. It lends places in hostmem regions, which the engine registers with its devices; the
// store is closed before they are.
package store

import (
	"context"
	"fmt"
	"iter"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
)

// Kind says what the bytes of an extent are.
type Kind uint8

// The kinds of extents.
const (
	Weights      Kind = iota // bf16 compute weights (the high halves of the master), or fp32
	Low                      // int16 or int8 low halves of the split master
	Grad                     // gradients in their stored type
	FirstMoment              // of gradients, where an optimizer keeps them
	SecondMoment             // and of their squares
	FirstScale               // scales of first moments in codes, one for each block of them
	SecondScale              // and of second moments
	GradSum                  // fp32 gradient of a tied tile on its way from head to embedding; nothing between steps
	Inputs                   // saved inputs of a block, from its forward to its backward visit; nothing between steps
	Kinds        = iota
)

// String is the kind's name in plans, reports and checkpoints.
func (k Kind) String() string {
	return [...]string{"weights", "low halves", "gradients", "first moments", "second moments",
		"first moment scales", "second moment scales", "embedding gradient sum", "saved layer inputs"}[k]
}

// Transient reports whether extents of the kind stay out of checkpoints and need not be durable: gradients, and
// everything that each step writes again.
func (k Kind) Transient() bool { return k == Grad || k == GradSum || k == Inputs }

// Form says in which elements extents of a kind hold something of each parameter. The zero Form holds nothing.
type Form struct {
	Type tensor.DType
	Per  int64 // how many parameters share an element, as those of a block share a scale; a divisor of tensor.Align
}

// Each is the form with an element for each parameter.
func Each(t tensor.DType) Form { return Form{Type: t, Per: 1} }

// Forms are the forms of all kinds.
type Forms [Kinds]Form

// Kept reports whether there is anything of the kind.
func (f Form) Kept() bool { return f.Type != tensor.Invalid }

// Elems is the number of elements for n parameters, a multiple of tensor.Align.
func (f Form) Elems(n int64) int64 {
	if !f.Kept() {
		return 0
	}
	return n / f.Per
}

// Bytes is the length of that many.
func (f Form) Bytes(n int64) int64 { return f.Elems(n) * f.Type.Bytes() }

// ID names an extent.
type ID struct {
	Part int // index in model.Model.Parts
	Kind Kind
}

func (id ID) String() string { return fmt.Sprintf("%v of part %d", id.Kind, id.Part) }

// Spec asks for an extent.
type Spec struct {
	ID
	Bytes int64
	Piece int64 // bytes of each piece but the last, which may be shorter
	// Share is the number, from 1, of the room in memory that the extent has in common with all of its kind that have
	// this number: one after the other, as the caller sees to. 0: it has its own. Only RAM has such extents.
	Share int
}

// Pieces are the offset and length of each piece, in order.
func (s Spec) Pieces() iter.Seq2[int64, int64] {
	return func(yield func(off, n int64) bool) {
		for off := int64(0); off < s.Bytes; off += s.Piece {
			if !yield(off, min(s.Piece, s.Bytes-off)) {
				return
			}
		}
	}
}

// Access is the kind of a loan: to be read, written, or both.
type Access uint8

// The accesses.
const (
	Read      Access = iota
	Write            // all of it; the lent bytes hold anything before
	ReadWrite        // read, and written
)

// Lease is a borrowed range, in host memory that stays in place until Release.
type Lease struct {
	Region *hostmem.Region
	Off    int64 // of the range in Region
	Len    int64 // bytes

	release func()
}

// Bytes is the borrowed range.
func (l *Lease) Bytes() []byte { return l.Region.Bytes()[l.Off : l.Off+l.Len] }

// Release gives the range back. After a write it makes the extent's next version current. A second call does nothing.
func (l *Lease) Release() {
	if f := l.release; f != nil {
		l.release = nil
		f()
	}
}

// Store lends extents.
type Store interface {
	// Borrow lends the n bytes at off of an extent, whose pieces have seen version writes. To write needs whole pieces,
	// and makes them version+1 on Release. A store that stages its extents lends one piece at a time, and may block
	// until the lane has given back staging memory or ctx ends; each lane has a quota of its own. It panics on an unknown
	// extent or range, a wrong version, or a clash with another lease.
	Borrow(ctx context.Context, lane trace.Worker, id ID, off, n int64, access Access, version uint64) (*Lease, error)
	// Prefetch hints that the lane will borrow the piece at off soon, to read or to change it at that version, which
	// need not be current yet. It never blocks. One hint is good for one Borrow; hints go in the order of use.
	Prefetch(lane trace.Worker, id ID, off int64, version uint64)
	// Version is the number of writes that the extent has seen: that of its first piece.
	Version(id ID) uint64
	// Regions are all the memory that leases can point into.
	Regions() []*hostmem.Region
	// Close gives back the memory. All leases must have been released.
	Close() error
}
