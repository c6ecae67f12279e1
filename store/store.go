// Package store keeps the state of the parameters between steps and lends it to the lanes of the engine.
//
// State is kept in extents: one part's bytes of one kind. A lane borrows a range of an extent, for reading or for
// writing, at the version that it expects, and releases it. Many may read at once; who writes is alone. The version of
// an extent is the number of writes it has seen. The schedule orders all accesses, so a wrong version or a clash of
// accesses is a bug of the caller and panics: training goes on with the right numbers or not at all.
//
// A store does not know devices. It lends places in hostmem regions, which the engine registers with its devices; the
// store is closed before they are.
package store

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/hostmem"
)

// Kind says what the bytes of an extent are.
type Kind uint8

// The kinds of extents.
const (
	Weights      Kind = iota // bf16 compute weights (the high halves of the master), or fp32
	Low                      // int16 low halves of the split master
	Grad                     // gradients in their stored type
	FirstMoment              // Adam's m
	SecondMoment             // Adam's v
	Kinds        = iota
)

// String is the kind's name in plans, reports and checkpoints.
func (k Kind) String() string {
	return [...]string{"weights", "low halves", "gradients", "first moments", "second moments"}[k]
}

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
}

// Access is how a range is borrowed.
type Access uint8

// The two accesses.
const (
	Read Access = iota
	Write
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
	// Borrow lends the n bytes at off of an extent that has seen version writes. Reading needs that version; writing
	// turns it into version+1 on Release. It may block for staging memory, until ctx ends. It panics on an unknown
	// extent or range, a wrong version, or a clash with another lease.
	Borrow(ctx context.Context, id ID, off, n int64, access Access, version uint64) (*Lease, error)
	// Prefetch hints that the range will be borrowed for reading soon.
	Prefetch(id ID, off, n int64, version uint64)
	// Version is the number of writes that the extent has seen.
	Version(id ID) uint64
	// Regions are all the memory that leases can point into.
	Regions() []*hostmem.Region
	// Close gives back the memory. All leases must have been released.
	Close() error
}
