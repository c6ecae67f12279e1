package data

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
)

// pairs is a tokenizer whose tokens are two bytes where possible. It may hide how they are spelled, as a tokenizer with
// a normalizer does.
type pairs struct {
	tokenizer.Tokenizer
	hides bool
}

func (p pairs) Encode(text string, _ bool) (ids []int32) {
	for i := 0; i < len(text); i += 2 {
		id := int32(text[i])
		if i+1 < len(text) {
			id |= int32(text[i+1])<<8 | 1<<16
		}
		ids = append(ids, id)
	}
	return ids
}

func (p pairs) AppendBytes(dst []byte, id int32, _ bool) []byte {
	if p.hides {
		return append(dst, '?')
	}
	dst = append(dst, byte(id))
	if id>>16 > 0 {
		dst = append(dst, byte(id>>8))
	}
	return dst
}

// TestJoinedLaw: a token counts just if it has a byte of a target, whether its bytes are known or found by encoding
// parts.
func TestJoinedLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segments := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Segment {
			return Segment{rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 5, -1).Draw(t, "text"), rapid.Bool().Draw(t, "target")}
		}), 0, 8).Draw(t, "segments")
		text, isTarget := "", []bool{}
		for _, s := range segments {
			text += s.Text
			for range s.Text {
				isTarget = append(isTarget, s.Target)
			}
		}
		var want []bool
		for i := 0; i < len(text); i += 2 {
			want = append(want, isTarget[i] || i+1 < len(text) && isTarget[i+1])
		}
		for _, hides := range []bool{false, true} {
			tok := pairs{tokenizer.Bytes(), hides}
			ids, got, _ := encodeJoined(tok, segments)
			if diff := cmp.Diff(append([]bool{}, want...), append([]bool{}, got...)); diff != "" || !cmp.Equal(ids, tok.Encode(text, false)) {
				t.Fatalf("hides %v: %s", hides, diff)
			}
		}
	})
}

func TestCut(t *testing.T) {
	got := cut("abcdef", []template.Span{{Start: 0, End: 1}, {Start: 1, End: 2}, {Start: 4, End: 6}})
	if diff := cmp.Diff([]Segment{{"a", true}, {"b", true}, {"cd", false}, {"ef", true}}, got); diff != "" {
		t.Error(diff)
	}
}
