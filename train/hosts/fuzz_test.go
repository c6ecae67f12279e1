package hosts

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzMessages reads what another host has given: as the report of an error, as a text. Either it
// is a message of that kind, or an error of one line.
func FuzzMessages(f *testing.F) {
	good, err := json.Marshal(message[told]{"hosts.told", told{"the sluice is shut", 1}})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{string(good), "", "{}", "null", `{"kind":"hosts.told"}`,
		`{"kind":"hosts.told","value":null}`,
		`{"kind":"hosts.told","value":{"text":1}}`, `{"kind":"string","value":"a\nb"}`,
		strings.Repeat("[", 20000), `{"kind":"hosts.told","value":{"kinds":-1}}`} {
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
		if _, err := readMessages[told](c, texts[:1]); err == nil {
			t.Error("one message of 2 hosts is accepted")
		}
	})
}
