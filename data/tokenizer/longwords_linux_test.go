package tokenizer

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLongWords: the work is near linear in the length of a word. 64 times the text may take 640 times the processor time of this
// thread, which other load hardly changes; if the work were quadratic it would be 4096 times.
func TestLongWords(t *testing.T) {
	const short, times = 2_000, 64
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	random := func(alphabet string) func(n int) string {
		letters := []rune(alphabet)
		return func(n int) string {
			r := rand.New(rand.NewPCG(1, 2))
			b := make([]rune, n)
			for i := range b {
				b[i] = letters[r.IntN(len(letters))]
			}
			return string(b)
		}
	}
	kinds := map[string]func(n int) string{
		"one letter": random("a"), "letters": random("aeinorst"), "spaces": random(" "), "marks": random("<|="), "characters": random("漢字水é🌊")}
	for _, name := range names {
		tok := load(t, name)
		var ids []int32
		quickest := func(text string, runs int) time.Duration {
			best := time.Hour
			for range runs {
				start := threadTime(t)
				ids = tok.AppendEncode(ids[:0], text, false)
				best = min(best, threadTime(t)-start)
			}
			return best
		}
		for kind, text := range kinds {
			a, long := quickest(text(short), 5), text(short*times)
			limit := 10*times*a + 50*time.Millisecond
			b := quickest(long, 1)
			if b > limit { // the two may not have had the same share of a core
				b = quickest(long, 3)
			}
			if b > limit {
				t.Errorf("%s, %s: %v for %d characters, %v for %d", name, kind, a, short, b, short*times)
			}
		}
	}
}

// threadTime is the processor time of the calling thread.
func threadTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
