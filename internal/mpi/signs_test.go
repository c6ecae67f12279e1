package mpi

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
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
		got, ok := signOf(b, 4)
		if s.at = s.at[:min(len(s.at), signBytes-24)]; len(b) != signBytes || got != s || !ok {
			t.Errorf("%+v arrives as %+v in %d bytes", s, got, len(b))
		}
	}
	for _, s := range []sign{{"", -2, 0}, {"", 4, 0}, {"", 1 << 40, 0}, {"", 0, -time.Hour}, {"", 0, longestStand + time.Second}} {
		if got, ok := signOf(s.bytes(), 4); ok {
			t.Errorf("%+v is %+v", s, got)
		}
	}
}

// No message of another program ends the process, or is taken for a sign of a rank that is not there.
func FuzzSigns(f *testing.F) {
	f.Add(sign{"at step 7", 3, 5e9}.bytes(), uint8(4))
	f.Add([]byte(strings.Repeat("A", signBytes)), uint8(2))
	f.Add([]byte(strings.Repeat("\xff", signBytes)), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		b = append(b, make([]byte, signBytes)...)[:signBytes]
		s, ok := signOf(b, int(size))
		if ok && (s.rank < leaving || s.rank >= int(size) || s.since < 0 || len(s.at) > 3*signBytes) {
			t.Errorf("%d ranks, %+v", size, s)
		}
		if again, same := signOf(s.bytes(), int(size)); ok && size > 0 && utf8.ValidString(s.at) && len(s.at) <= signBytes-24 &&
			(again != s || !same) {
			t.Errorf("%+v is %+v", s, again)
		}
		if hosts, err := greeted([][]byte{b}); err == nil && (len(hosts) != 1 || !strings.HasPrefix(string(b), word)) {
			t.Errorf("%q greets with %q", b, hosts)
		}
	})
}

// A rank whose first message, or whose sign, is of another program is named.
func TestAnotherProgram(t *testing.T) {
	if _, err := greeted([][]byte{greeting("a"), []byte("b")}); err == nil || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("error %v", err)
	}
	hosts, err := greeted([][]byte{greeting("a"), greeting(strings.Repeat("b", 2*maxHostName))})
	if err != nil || len(hosts) != 2 || hosts[0] != "a" || len(hosts[1]) != maxHostName {
		t.Errorf("%v, error %v", hosts, err)
	}
}
