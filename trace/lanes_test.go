package trace

import (
	"encoding/json"
	"math"
	"testing"
)

// As JSON lanes are named in their order: those that only some runs have where they were busy, and what is no number as
// null.
func TestLanesAsJSON(t *testing.T) {
	l := Lanes{Fetch: 0.25, Update: 1e-9, Disk: math.NaN(), Send: 2}
	text, err := json.Marshal(l)
	want := `{"fetch":0.25,"compute":0,"drain":0,"update":1e-09,"disk":null,"send":2}`
	if err != nil || string(text) != want {
		t.Fatalf("%s, %v; want %s", text, err, want)
	}
	var again Lanes
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if l[Disk] = 0; again != l {
		t.Errorf("%v is read as %v", l, again)
	}
}

// Each lane has its words.
func TestLanesHaveWords(t *testing.T) {
	seen := map[string]Lane{}
	for l := range NumLanes {
		for _, word := range []string{l.String(), l.Work(), l.Limit()} {
			if other, ok := seen[word]; ok || word == "" {
				t.Errorf("lane %d has %q, as lane %d", l, word, other)
			}
			seen[word] = l
		}
	}
}
