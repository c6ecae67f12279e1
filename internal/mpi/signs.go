package mpi

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Ranks wait for each other in chains: rank 0 for rank 1, which waits for rank 2, which hangs. A wait that is too long
// has to name rank 2. So every beat each rank tells all others what it is at and for whom it waits: a sign. Who comes
// first from a wait along these is the one that keeps the others waiting: it gives no sign any more, or it is at
// something of its own.

// Standing says what a rank is at, and the rank whose message it needs for that: itself where it needs none, and less
// than 0 where a message that is under way says so.
type Standing func() (at string, rank int)

// sign tells the other ranks of a rank.
type sign struct {
	at    string
	rank  int           // that it waits for; itself: none
	since time.Duration // for how long it has stood there, at its sender
}

const (
	signBytes = 256
	leaving   = -1 // as rank of a sign: the last one of a rank
)

// bytes has the rank, the time in ms and the length of the text, 8 bytes each, and the text.
func (s sign) bytes() []byte {
	at := s.at[:min(len(s.at), signBytes-24)]
	b := make([]byte, 0, signBytes)
	for _, n := range []int64{int64(s.rank), s.since.Milliseconds(), int64(len(at))} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, at...)[:signBytes]
}

// signOf reads a sign of signBytes among a number of ranks; ok is false where no program of this version has sent the
// bytes.
func signOf(b []byte, size int) (s sign, ok bool) {
	n := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
	rank, since, length := n(0), n(1), n(2)
	if rank < leaving || rank >= int64(size) || since < 0 || since > longestStand.Milliseconds() ||
		length < 0 || length > signBytes-24 {
		return sign{}, false
	}
	return sign{rank: int(rank), since: time.Duration(since) * time.Millisecond,
		at: strings.ToValidUTF8(string(b[24:24+length]), "?")}, true
}

// longestStand is longer than a run takes.
const longestStand = 100 * 365 * 24 * time.Hour

// heard has the latest sign of a rank, and the messages of signs that are under way.
type heard struct {
	sign
	when     time.Time
	out, in  *Request // nil: no message is under way
	hasLeft  bool     // it was the last one
	hasHeard bool     // it has this one's last sign
}

// signs has this rank's standing and the others'. The thread alone uses it.
type signs struct {
	rank     int
	standing Standing
	of       []heard // by rank; empty before ranks tell each other
	own      sign
	known    bool      // standing has said for whom this rank waits
	began    time.Time // when it stood there first
	told     time.Time
	beat     time.Duration
}

// A sign comes every beat, which is a second or less. A rank that has given none for silentBeats is silent.
const (
	longBeat    = time.Second
	silentBeats = 5
)

// beginSigns has the thread give signs from now on.
func (t *thread) beginSigns(rank, size int) {
	now := time.Now()
	t.signs = signs{rank: rank, of: make([]heard, size), own: sign{at: "before the first step", rank: rank}, began: now,
		beat: min(longBeat, t.timeout/20)}
	for r := range t.signs.of {
		t.signs.of[r].when, t.signs.of[r].sign = now, sign{at: t.signs.own.at, rank: r}
	}
}

// nextSign is the time until a sign is due; false where none is.
func (t *thread) nextSign(now time.Time) (time.Duration, bool) {
	s := &t.signs
	return max(s.beat-now.Sub(s.told), 0), len(s.of) > 1 && t.failed == nil
}

// giveSigns tells the others where this rank stands, if that is due, and hears them.
func (t *thread) giveSigns(now time.Time) {
	if left, due := t.nextSign(now); left > 0 || !due {
		return
	}
	t.signs.told = now
	t.stand(now)
	for r := range t.signs.of {
		if r != t.signs.rank {
			t.tell(r, t.signs.own)
			t.hear(r, now)
		}
	}
}

// stand finds out where this rank stands.
func (t *thread) stand(now time.Time) {
	s, is := &t.signs, sign{at: t.signs.own.at, rank: -1}
	if s.standing != nil {
		is.at, is.rank = s.standing()
	}
	if s.known = is.rank >= 0; !s.known {
		is.rank = s.rank
		if len(t.pending) > 0 {
			is.rank = t.pending[0].peer // the one that began first
		}
	}
	if is.at != s.own.at || is.rank != s.own.rank {
		s.own, s.began = is, now
	}
	s.own.since = now.Sub(s.began)
}

// tell sends a sign to a rank, unless that has not taken the one before.
func (t *thread) tell(r int, s sign) (told bool) {
	h := &t.signs.of[r]
	if !t.isOver(h.out) || t.failed != nil {
		return false
	}
	h.out = &Request{peer: r, tag: tagSigns, bytes: s.bytes()}
	t.begin(h.out)
	return true
}

// hear takes what signs of a rank have come.
func (t *thread) hear(r int, now time.Time) {
	for h := &t.signs.of[r]; !h.hasLeft && t.failed == nil; {
		if h.in == nil {
			h.in = &Request{peer: r, tag: tagSigns, bytes: make([]byte, signBytes), arrives: true}
			t.begin(h.in)
		}
		if !t.isOver(h.in) || t.failed != nil {
			return
		}
		said, ok := signOf(h.in.bytes, len(t.signs.of))
		if h.in = nil; !ok {
			t.fail(otherProgram(t.who(r)))
			return
		}
		h.sign, h.when = said, now
		h.hasLeft = h.rank == leaving
	}
}

// isOver reports whether the message of a sign has been sent or has arrived, or does not exist.
func (t *thread) isOver(r *Request) bool {
	if r == nil {
		return true
	}
	ended, err := t.proceed(r)
	if err != nil && t.failed == nil {
		t.lost = append(t.lost, r)
		t.fail(err)
	}
	return ended && err == nil
}

// takeLeave gives the last sign and hears the others' last ones, since the library must not end while it awaits
// messages. It takes no longer than a time.
func (t *thread) takeLeave(most time.Duration) {
	s, begin := &t.signs, time.Now()
	last := s.own
	last.rank = leaving
	for all := false; !all && t.failed == nil && time.Since(begin) < most; time.Sleep(longPause) {
		all = true
		for r := range s.of {
			if h := &s.of[r]; r != s.rank {
				h.hasHeard = h.hasHeard || t.tell(r, last)
				t.hear(r, time.Now())
				all = all && h.hasHeard && t.isOver(h.out) && h.hasLeft
			}
		}
	}
}

// blame says which ranks keep this one waiting for messages of or to others, and how that is known; empty before ranks
// give signs.
func (t *thread) blame(peers []int, now time.Time) string {
	s := &t.signs
	if len(s.of) < 2 {
		return ""
	}
	t.stand(now)
	if s.known {
		peers = []int{s.own.rank}
	}
	s.of[s.rank].sign, s.of[s.rank].when = s.own, now
	var silent []int
	why := ""
	for _, peer := range peers {
		chain := t.chain(peer, now)
		at := chain[len(chain)-1]
		h := &s.of[at]
		ago := now.Sub(h.when)
		switch next := h.rank; {
		case t.isSilent(at, now):
			if !slices.Contains(silent, at) {
				silent = append(silent, at)
			}
			why = fmt.Sprintf("%s has given no sign of life for %v, since it was %s%s: it has stopped, or cannot be "+
				"reached; see its output and its machine", t.who(at), rounded(ago), h.at, t.waits(chain))
		case len(silent) > 0: // which says more
		case slices.Contains(chain[:len(chain)-1], next):
			why = fmt.Sprintf("%s and %s wait for each other, %s and %s, for %v: the network between them fails, or "+
				"is slow; see their machines, or raise distributed.timeout", t.who(next), t.who(at), s.of[next].at,
				h.at, rounded(h.since+ago))
		case h.since+ago < t.timeout/2:
			why = fmt.Sprintf("%s keeps others waiting: it works, and was last %s%s: it is slow; raise "+
				"distributed.timeout", t.who(at), h.at, t.waits(chain))
		default:
			why = fmt.Sprintf("%s keeps others waiting: it has been %s for %v%s: it hangs, as at a disk or a device, "+
				"or is slow; see its machine, or raise distributed.timeout", t.who(at), h.at, rounded(h.since+ago),
				t.waits(chain))
		}
	}
	if len(silent) > 1 {
		slices.Sort(silent)
		return fmt.Sprintf("%s have given no sign of life for %v: they have stopped, or cannot be reached; see their "+
			"output and their machines", t.who(silent...), rounded(now.Sub(s.of[silent[0]].when)))
	}
	return why
}

// chain lists the ranks from this one on that wait each for the next, from a peer on, up to one that is silent, that
// waits for none, or that waits for one that comes before it.
func (t *thread) chain(peer int, now time.Time) []int {
	s := &t.signs
	chain := []int{s.rank}
	for at := peer; !slices.Contains(chain, at); at = s.of[at].rank {
		chain = append(chain, at)
		if t.isSilent(at, now) || s.of[at].rank == leaving {
			break
		}
	}
	return chain
}

// isSilent reports whether a rank has given no sign for too long.
func (t *thread) isSilent(rank int, now time.Time) bool {
	return now.Sub(t.signs.of[rank].when) >= silentBeats*t.signs.beat
}

func (t *thread) who(ranks ...int) string { return who(ranks, t.hosts) }

// waits says how this rank waits for the last one of a chain; empty where that is this one.
func (t *thread) waits(chain []int) string {
	if len(chain) < 2 {
		return ""
	}
	through := ""
	if between := chain[1 : len(chain)-1]; len(between) > 0 {
		through = " through " + t.who(between...)
	}
	return fmt.Sprintf("; %s waits for it%s", t.who(chain[0]), through)
}

// rounded is a time as people want it.
func rounded(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
