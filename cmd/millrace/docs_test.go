package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/millrace/millrace/runfile"
)

func doc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocsNameEveryKey(t *testing.T) {
	text := doc(t, "run-yaml.md")
	n := 0
	keys(reflect.TypeFor[runfile.Config](), "", true, func(key string) {
		n++
		if !strings.Contains(text, "`"+key+"`") {
			t.Errorf("docs/run-yaml.md does not have %s", key)
		}
	})
	if n < 40 {
		t.Errorf("found %d keys only", n)
	}
}

func TestDocsNameEveryFlag(t *testing.T) {
	text := doc(t, "cli.md")
	parser, err := kong.New(&commands{})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range parser.Model.Leaves(true) {
		if !strings.Contains(text, "| `"+verb.Path()) {
			t.Errorf("docs/cli.md does not have %s", verb.Path())
		}
		for _, f := range verb.Flags {
			if !strings.Contains(text, "--"+f.Name) {
				t.Errorf("docs/cli.md does not have --%s of %s", f.Name, verb.Name)
			}
		}
	}
}

// The run files of examples are read; what they name need not be there.
func TestExamplesAreRunFiles(t *testing.T) {
	if _, err := runfile.Read("../../examples/smollm2-gsm8k/run.yaml", nil); err != nil {
		t.Error(err)
	}
}
