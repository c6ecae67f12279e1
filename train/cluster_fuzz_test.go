package train

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/train/rundir"
)

// FuzzMessages reads what another host has given: as the arrival of a run, as places of files, as an error. Either it
// is a message of that kind, or an error of one line; and no identity leads out of the directories that it names.
func FuzzMessages(f *testing.F) {
	run := checkpoint.NewRunID()
	good, err := json.Marshal(message[arrival]{"train.arrival", arrival{OutputDir: "/a", Identity: rundir.Identity{Run: run, Name: "a-" + run.Short()}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{string(good), "", "{}", "null", `{"kind":"train.arrival"}`, `{"kind":"train.arrival","value":null}`,
		`{"kind":"train.arrival","value":{"identity":{"run":"x","name":"../../etc"}}}`, `{"kind":"string","value":"a\nb"}`,
		strings.Repeat("[", 20000), `{"kind":"train.arrival","value":{"sizes":{"micro_batch":-1}}}`} {
		f.Add([]byte(text))
	}
	own, err := json.Marshal(message[string]{"string", "x"})
	if err != nil {
		f.Fatal(err)
	}
	c := &Cluster{Hosts: 2}
	f.Fuzz(func(t *testing.T, text []byte) {
		texts := [][]byte{own, text}
		if all, err := readMessages[string](c, texts); err == nil && len(all) != 2 {
			t.Errorf("%d messages of 2 hosts", len(all))
		} else if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("more than one line: %q", err)
		}
		found, err := readMessages[arrival](c, [][]byte{text, text})
		if err == nil && found[0].Identity.Check() == nil {
			if name := found[0].Identity.Name; !filepath.IsLocal(name) || name != filepath.Base(name) {
				t.Errorf("a run is called %q", name)
			}
		}
		if _, err := readMessages[arrival](c, texts[:1]); err == nil {
			t.Error("one message of 2 hosts is accepted")
		}
	})
}

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
