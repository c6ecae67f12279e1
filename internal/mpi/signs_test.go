package mpi

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// awaits has a rank wait for a message of another one.
func awaits(w *World, rank int) error { return w.Receive(rank, 0, make([]byte, 1)).Wait() }

// A wait that is too long names the rank that keeps all others waiting, also at the end of a chain of waits, what it is
// at and since when.
func TestTheLastOfAChainIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(w *World) error
		want map[int]string // of those that have an error, by rank
	}{
		"it gives no sign": {func(w *World) error {
			if w.Rank == 2 {
				return nil
			}
			return awaits(w, w.Rank+1)
		}, map[int]string{
			0: `^rank 2 (H) has given no sign of life for SOME, since it was before the first step; ` +
				`rank 0 (H) waits for it through rank 1 (H): `,
			1: `^rank 2 (H) has given no sign of life for SOME, since it was before the first step; ` +
				`rank 1 (H) waits for it: `,
		}},
		"it is at something of its own": {func(w *World) error {
			switch w.Rank {
			case 0:
				w.TellBy(func() (string, int) { return "at step 3, part 4", 1 })
				return awaits(w, 1)
			case 1:
				return awaits(w, 2)
			}
			w.TellBy(func() (string, int) { return "at step 3, part 2", 2 })
			return awaits(w, 0) // as its lane does that receives
		}, map[int]string{
			0: `^rank 2 (H) keeps others waiting: it has been at step 3, part 2 for SOME; rank 0 (H) waits for it ` +
				`through rank 1 (H): `,
			1: `^rank 2 (H) keeps others waiting: it has been at step 3, part 2 for SOME; rank 1 (H) waits for it: `,
			2: `^rank 2 (H) keeps others waiting: it has been at step 3, part 2 for SOME: it hangs`,
		}},
		"it works": {func(w *World) error {
			if w.Rank == 0 {
				return awaits(w, 1)
			}
			if w.Rank == 2 {
				return nil
			}
			step := 0
			w.TellBy(func() (string, int) { step++; return fmt.Sprintf("at step %d", step), 1 })
			return awaits(w, 2)
		}, map[int]string{0: `^rank 1 (H) keeps others waiting: it works, and was last at step \d+; ` +
			`rank 0 (H) waits for it: it is slow`}},
		"no message arrives": {func(w *World) error {
			if w.Rank == 2 {
				return nil
			}
			return awaits(w, 1-w.Rank)
		}, map[int]string{
			0: `^rank 0 (H) and rank 1 (H) wait for each other, before the first step and before the first step, ` +
				`for SOME: `,
			1: `^rank 1 (H) and rank 0 (H) wait for each other, `}},
	} {
		for rank, err := range ranks(t, 3, c.f) {
			if c.want[rank] == "" {
				continue
			}
			want := strings.NewReplacer("(H)", `\(host [^)]+\)`, "SOME", `(900ms|1s|1\.1s)`).Replace(c.want[rank])
			if !regexp.MustCompile(want).MatchString(fmt.Sprint(err)) {
				t.Errorf("%s: rank %d: %v, want %s", name, rank, err, want)
			}
		}
	}
}

// Ranks take leave of each other at different times, and none has a message left that it awaits.
func TestTakeLeave(t *testing.T) {
	for rank, err := range ranks(t, 3, func(w *World) error {
		time.Sleep(time.Duration(w.Rank) * 200 * time.Millisecond) // of the bubble: some beats
		var err error
		w.thread.do(func() {
			w.thread.takeLeave(w.timeout)
			for r, h := range w.thread.signs.of {
				if r != w.Rank && (h.in != nil || !h.hasLeft) {
					err = fmt.Errorf("it has left rank %d with %+v", r, h)
				}
			}
		})
		return err
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// Signs of any contents arrive as they were, with as much of the text as there is room for.
func TestSigns(t *testing.T) {
	for _, s := range []sign{{"", 0, 0}, {"at step 7", 3, 5e9}, {strings.Repeat("x", signBytes), leaving, 1e6}} {
		b := s.bytes()
		got := signOf(b)
		if s.at = s.at[:min(len(s.at), signBytes-24)]; len(b) != signBytes || got != s {
			t.Errorf("%+v arrives as %+v in %d bytes", s, got, len(b))
		}
	}
	wild := make([]byte, signBytes)
	for i := range wild {
		wild[i] = 0xff
	}
	if got := signOf(wild); got.at != "" || got.rank != leaving {
		t.Errorf("%+v", got)
	}
}
