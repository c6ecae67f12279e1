package tokenizer

import (
	"math/rand/v2"
	"testing"
)

// counted is a matcher that counts: instructions of an expression, and calls and characters of a scanner.
type counted struct {
	matcher
	steps *int
}

func (c counted) next(s string, i int, m *memo) (start, end int) {
	before := m.steps
	start, end = c.matcher.next(s, i, m)
	*c.steps += m.steps - before + max(end, i) - i + 1
	return start, end
}

// TestLongWords: the work is near linear in the length of a word. 64 times the text may take 128 times the steps, of which the
// logarithm of a heap takes its share; if the work were quadratic it would be 4096 times.
func TestLongWords(t *testing.T) {
	const short, times = 2_000, 64
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
		cuts := 0 // steps of the pre-tokenizer
		for i, s := range tok.splitters {
			if s, ok := s.(split); ok {
				tok.splitters[i] = split{matcher: counted{s.matcher, &cuts}, behavior: s.behavior, invert: s.invert}
			}
		}
		e := tok.newEncoder().(*encoder)
		tok.encoders.New = func() any { return e }
		steps := func(text string) (cut, model int) {
			cuts, e.steps = 0, 0
			tok.encoders.Put(e)
			tok.Encode(text, false)
			return cuts, e.steps
		}
		worked := false
		for kind, text := range kinds {
			cut, model := steps(text(short))
			longCut, longModel := steps(text(short * times))
			worked = worked || model >= short
			if longCut > 2*times*max(cut, short) {
				t.Errorf("%s, %s: the pre-tokenizer takes %d steps for %d characters, %d for %d", name, kind, cut, short, longCut, short*times)
			}
			if longModel > 2*times*max(model, short) {
				t.Errorf("%s, %s: the model takes %d steps for %d characters, %d for %d", name, kind, model, short, longModel, short*times)
			}
		}
		if !worked {
			t.Errorf("%s: no steps of the model are counted", name)
		}
	}
}
