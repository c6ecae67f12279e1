package export

import "testing"

// FuzzQuestions reads what host 0 asks for: a part that this host has, or an error.
func FuzzQuestions(f *testing.F) {
	for _, part := range []int{0, 1, 5, 6, -1, -2, -3, 1 << 62} {
		f.Add(question(part))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) < 8 {
			return // no other length is received
		}
		part, err := askedPart(text, 6, func(part int) bool { return part%2 == 0 })
		if err == nil && part != noPart && part != noQuestion && (part < 0 || part >= 6 || part%2 != 0) {
			t.Errorf("part %d", part)
		}
	})
}
