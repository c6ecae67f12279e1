package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// network is MPI in Go: messages wait in it by sender, receiver and tag, in their order.
type network struct {
	sync.Mutex
	waiting map[[3]int][][]byte
	broken  map[int]bool // ranks that cannot be reached, except by signs, which go out by the clock
}

// port is a rank of a network, as a library.
type port struct {
	*network
	rank int
}

type parcel struct {
	key [3]int
	in  []byte // nil of a parcel that is sent
}

func (p port) send(to, tag int, b []byte) (transfer, error) {
	p.Lock()
	defer p.Unlock()
	if p.broken[to] && tag <= MaxTag {
		return nil, errors.New("MPI_Isend: connection refused")
	}
	key := [3]int{p.rank, to, tag}
	p.waiting[key] = append(p.waiting[key], slices.Clone(b))
	return parcel{key: key}, nil
}

func (p port) receive(from, tag int, b []byte) (transfer, error) {
	return parcel{key: [3]int{from, p.rank, tag}, in: b[:len(b):len(b)]}, nil
}

func (p port) test(t transfer) (bool, int, error) {
	p.Lock()
	defer p.Unlock()
	m := t.(parcel)
	switch {
	case m.in == nil:
		return true, 0, nil
	case p.broken[m.key[0]] && m.key[2] <= MaxTag:
		return true, 0, errors.New("MPI_Test: connection reset")
	case len(p.waiting[m.key]) == 0:
		return false, 0, nil
	}
	n := copy(m.in, p.waiting[m.key][0])
	if n < len(p.waiting[m.key][0]) {
		return true, 0, errors.New("MPI_Test: message truncated")
	}
	p.waiting[m.key] = p.waiting[m.key][1:]
	return true, n, nil
}

func (port) leave(int) {}
func (port) abort(int) {}

// ranks runs f as each of n ranks, in a bubble whose clock runs when all wait, and returns the errors by rank.
func ranks(t *testing.T, n int, f func(w *World) error) []error {
	t.Helper()
	all := make([]error, n)
	synctest.Test(t, func(t *testing.T) {
		net := &network{waiting: map[[3]int][][]byte{}, broken: map[int]bool{}}
		var group sync.WaitGroup
		for r := range n {
			group.Go(func() {
				w, err := start(func() (joined, error) {
					local := make([]int, n)
					for i := range local {
						local[i] = i
					}
					return joined{library: port{net, r}, version: "network", rank: r, size: n, local: local}, nil
				}, time.Second)
				if err != nil {
					all[r] = err
					return
				}
				all[r] = f(w)
				w.thread.stop()
			})
		}
		group.Wait()
	})
	return all
}

// stop ends the thread, which ends with its process otherwise.
func (t *thread) stop() { close(t.tasks) }

// The program that real libraries run, on the network of these tests.
func TestRanksInOneProcess(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		for r, err := range ranks(t, n, everything) {
			if err != nil {
				t.Errorf("rank %d of %d: %v", r, n, err)
			}
		}
	}
}

// everything uses each operation, and checks what arrives.
func everything(w *World) error {
	for range 20 {
		if err := w.Barrier(); err != nil {
			return err
		}
	}
	text := func(from, to, tag, n int) []byte {
		return bytes.Repeat([]byte{byte(1 + from*16 + to + tag*5)}, n)
	}
	lengths := []int{0, 1, 1000, 100_000, 1 << 20}
	var requests []*Request
	type message struct {
		from, tag int
		got, want []byte
	}
	var arriving []message
	for _, peer := range w.others() {
		for i := range lengths { // the receiver asks in another order than they are sent
			tag := len(lengths) - 1 - i
			m := message{peer, tag, make([]byte, lengths[tag]), text(peer, w.Rank, tag, lengths[tag])}
			requests = append(requests, w.Receive(peer, tag, m.got))
			arriving = append(arriving, m)
		}
		for tag, n := range lengths {
			requests = append(requests, w.Send(peer, tag, text(w.Rank, peer, tag, n)))
		}
	}
	for _, r := range requests {
		if err := r.Wait(); err != nil {
			return err
		}
	}
	for _, m := range arriving {
		if !bytes.Equal(m.got, m.want) {
			return fmt.Errorf("the message of rank %d with tag %d has other bytes", m.from, m.tag)
		}
	}
	for round := range 3 {
		if _, err := w.Exchange(make([]byte, maxSmall+1)); err == nil {
			return errors.New("more bytes than all ranks may send are sent")
		}
		all, err := w.Exchange(bytes.Repeat([]byte{byte(round)}, w.Rank))
		if err != nil {
			return err
		}
		for r, b := range all {
			if !bytes.Equal(b, bytes.Repeat([]byte{byte(round)}, r)) {
				return fmt.Errorf("rank %d's bytes of exchange %d arrive as %q", r, round, b)
			}
		}
	}
	peers := Peers{w}
	for _, to := range w.others() { // pair by pair, since a message may wait for its receiver
		got := make([]byte, 3)
		send := func() error { return peers.Send(context.Background(), to, text(w.Rank, to, 9, 3)) }
		receive := func() error { return peers.Receive(context.Background(), to, got) }
		first, second := send, receive
		if to < w.Rank {
			first, second = receive, send
		}
		if err := errors.Join(first(), second()); err != nil {
			return err
		}
		if !bytes.Equal(got, text(to, w.Rank, 9, 3)) {
			return fmt.Errorf("the message of rank %d has other bytes", to)
		}
	}
	if len(w.Local) != w.Size || w.Local[w.Rank] != w.Rank ||
		len(w.Hosts) != w.Size || w.Hosts[0] != w.Hosts[w.Size-1] {
		return fmt.Errorf("ranks %v share the host, of %d on %q", w.Local, w.Size, w.Hosts)
	}
	return nil
}

// A rank that does not come to a barrier is named by all others; so are two. The failure stays.
func TestMissingRanksAreNamed(t *testing.T) {
	for r, err := range ranks(t, 4, func(w *World) error {
		if w.Rank == 1 || w.Rank == 3 {
			return nil
		}
		err := w.Barrier()
		if again := w.Send(1, 0, nil).Wait(); again != err {
			return fmt.Errorf("after %w, a message gives %v", err, again)
		}
		return err
	}) {
		if r%2 == 1 {
			continue
		}
		want := regexp.MustCompile(`^ranks 1 \(host .*\) and 3 \(host .*\) have given no sign of life for (900ms|1s)`)
		if err == nil || !want.MatchString(err.Error()) {
			t.Errorf("rank %d: %v, want %v", r, err, want)
		}
	}
}

// One wait that is too long ends those that began later with it, and a wait shorter than the timeout ends well.
func TestWaits(t *testing.T) {
	for r, err := range ranks(t, 3, func(w *World) error {
		switch w.Rank {
		case 0:
			first, second := w.Receive(1, 0, make([]byte, 1)), w.Receive(2, 0, make([]byte, 1))
			if err := second.Wait(); err != nil {
				return fmt.Errorf("the second: %w", err)
			}
			third := w.Receive(2, 1, make([]byte, 1))
			if a, b := first.Wait(), third.Wait(); a == nil || a != b {
				return fmt.Errorf("the first ends with %v, the third with %v", a, b)
			}
			return nil
		case 2:
			return w.Send(0, 0, []byte{7}).Wait()
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// sizes has rank 1 send a message to rank 0, which awaits one of another length.
func sizes(w *World, sent, awaited int) error {
	if w.Rank == 1 {
		return w.Send(0, 5, make([]byte, sent)).Wait()
	}
	return w.Receive(1, 5, make([]byte, awaited)).Wait()
}

func TestFailuresOfMessages(t *testing.T) {
	for what, c := range map[string]struct {
		f    func(w *World) error
		want string
	}{
		"a shorter message": {func(w *World) error { return sizes(w, 12, 16) },
			" sent 12 bytes with tag 5 where 16 were awaited"},
		"a longer message": {func(w *World) error { return sizes(w, 20, 16) },
			": a message with tag 5 has failed: MPI_Test: message truncated; "},
		"a peer that resets": {func(w *World) error {
			if w.Rank == 1 {
				return nil
			}
			net := w.thread.library.(port).network
			net.Lock()
			net.broken[1] = true
			net.Unlock()
			return w.Receive(1, 0, make([]byte, 1)).Wait()
		}, ": a message with tag 0 has failed: MPI_Test: connection reset; "},
		"a peer that refuses": {func(w *World) error {
			if w.Rank == 1 {
				return nil
			}
			net := w.thread.library.(port).network
			net.Lock()
			net.broken[1] = true
			net.Unlock()
			return w.Send(1, 0, make([]byte, 1)).Wait()
		}, ": a message with tag 0 has failed: MPI_Isend: connection refused; "},
		"an absurd length": {func(w *World) error {
			if w.Rank == 1 {
				length := []byte{0, 0, 0, 0, 0, 0, 0, 255}
				return w.thread.submit(&Request{peer: 0, tag: tagExchange, bytes: length}).Wait()
			}
			_, err := w.Exchange(nil)
			return err
		}, " sends 18374686479671623680 bytes to all, and 67108864 is the limit"},
	} {
		errs := ranks(t, 2, c.f)
		if errs[0] == nil || !strings.HasPrefix(errs[0].Error(), "rank 1 (host ") ||
			!strings.Contains(errs[0].Error(), c.want) || errs[1] != nil {
			t.Errorf("%s: %v, want %q", what, errs, c.want)
		}
	}
}

// A host that gives up waiting has failed: nothing of it is sent or received any more.
func TestPeersGiveUp(t *testing.T) {
	for _, err := range ranks(t, 2, func(w *World) error {
		if w.Rank == 1 {
			return nil
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := (Peers{w}).Receive(ctx, 1, make([]byte, 1)); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the wait ends with %v", err)
		}
		if err := w.Send(1, 0, nil).Wait(); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a message after it: %v", err)
		}
		return nil
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

// Ranks that never find each other end too.
func TestStartEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		_, err := start(func() (joined, error) { <-never; return joined{}, errors.New("late") }, time.Minute)
		if err == nil || !strings.HasPrefix(err.Error(), "the ranks have not found each other for 1m0s: ") {
			t.Error(err)
		}
		close(never)
	})
}

// A message longer than the library's counts is sent in pieces, which arrive as one.
func TestLongMessages(t *testing.T) {
	for r, err := range ranks(t, 2, func(w *World) error {
		w.thread.do(func() { w.thread.piece = 4 })
		for n := range 14 {
			b := make([]byte, n)
			if w.Rank == 0 {
				for i := range b {
					b[i] = byte(i + 1)
				}
				if err := w.Send(1, 0, b).Wait(); err != nil {
					return err
				}
				continue
			}
			if err := w.Receive(0, 0, b).Wait(); err != nil {
				return err
			}
			for i := range b {
				if b[i] != byte(i+1) {
					return fmt.Errorf("%d bytes arrive as %v", n, b)
				}
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
