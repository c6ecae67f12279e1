package mpi

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Operations of all ranks. They are made of messages, so that a wait can name the ranks that are missing; the library's
// own would not. Each is a message from every sender to every receiver: hosts are few, and the bytes too.

// Tags of these operations; messages of one kind arrive in the order of the calls.
const (
	tagHosts = MaxTag + 1 + iota
	tagBarrier
	tagExchange
	tagSigns
)

// maxSmall bounds the bytes of a rank in these operations.
const maxSmall = 64 << 20

// Barrier returns after all ranks have called it.
func (w *World) Barrier() error {
	_, err := w.exchange(tagBarrier, nil)
	return err
}

// Exchange returns each rank's b on all ranks, by rank. Each has at most 64 MiB, and may have another length.
func (w *World) Exchange(b []byte) ([][]byte, error) {
	return w.exchange(tagExchange, b)
}

// others are all ranks except this one.
func (w *World) others() []int {
	var ranks []int
	for r := range w.Size {
		if r != w.Rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// exchange sends b to all ranks and receives theirs, by rank, with this rank's own. The length comes first, in 8 bytes.
func (w *World) exchange(tag int, b []byte) ([][]byte, error) {
	if len(b) > maxSmall {
		return nil, fmt.Errorf("mpi: %d bytes for all ranks, and %d is the limit: report this", len(b), maxSmall)
	}
	all := make([][]byte, w.Size)
	all[w.Rank] = b
	lengths := make([][]byte, w.Size)
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(b)))
	var requests []*Request
	others := w.others()
	move := func(peer int, arrives bool, bytes []byte) {
		requests = append(requests, w.thread.submit(&Request{peer: peer, tag: tag, bytes: bytes, arrives: arrives}))
	}
	for _, r := range others {
		lengths[r] = make([]byte, 8)
		move(r, true, lengths[r])
	}
	arriving := slices.Clone(requests)
	for _, r := range others {
		move(r, false, length)
		if len(b) > 0 {
			move(r, false, b)
		}
	}
	for i, r := range others {
		if err := arriving[i].Wait(); err != nil {
			return nil, err
		}
		n := binary.LittleEndian.Uint64(lengths[r])
		if n > maxSmall {
			return nil, fmt.Errorf("%s sends %d bytes to all, and %d is the limit: give all ranks the same program",
				who([]int{r}, w.Hosts), n, maxSmall)
		}
		if n > 0 {
			all[r] = make([]byte, n)
			move(r, true, all[r])
		}
	}
	for _, r := range requests {
		if err := r.Wait(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
