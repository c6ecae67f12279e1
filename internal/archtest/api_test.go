package archtest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// What public packages export can be named by programs in other modules.
func TestAPI(t *testing.T) {
	found, err := CheckAPI(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range found {
		t.Error(line)
	}
}

// Each way to export an internal type is found, and nothing else.
func TestCheckAPI(t *testing.T) {
	const cannot = ": programs in other modules cannot name internal/secret.T"
	for text, want := range map[string]string{
		"func F(secret.T) {}":                                       "open.F",
		"func F() (int, *secret.T) { return 0, nil }":               "open.F",
		"func F[X secret.T]() {}":                                   "open.F",
		"func F[X interface{ ~int | secret.T }]() {}":               "open.F",
		"var V = secret.New()":                                      "open.V",
		"var V map[string][]chan *secret.T":                         "open.V",
		"var V [2]secret.T":                                         "open.V",
		"var V map[secret.T]int":                                    "open.V",
		"type S[X secret.T] struct{ f X }":                          "open.S",
		"type S[X interface{ ~int | secret.T }] struct{ f X }":      "open.S",
		"type A[X secret.T] = []X":                                  "open.A",
		"type G[X any] = []X\nvar V G[secret.T]":                    "open.V",
		"type A = secret.T":                                         "open.A",
		"type A = []secret.T":                                       "open.A",
		"type D secret.T\ntype S struct{ F func() (secret.T) }":     "open.S.F",
		"type S struct{ secret.T }":                                 "open.S.T",
		"type S struct{ hidden }\ntype hidden struct{ F secret.T }": "open.S.hidden.F",
		"type S int\nfunc (*S) M(secret.T) {}":                      "open.S.M",
		"type I interface{ M() secret.T }":                          "open.I.M",
		"type I interface{ secret.T }":                              "open.I",
		"func New() *hidden { return nil }\ntype hidden int\nfunc (hidden) M() secret.T { return 0 }": "open.New.M",
		"type S struct{ F box[secret.T] }\ntype box[X any] struct{ x X }":                             "open.S.F",

		"type S struct{ f secret.T }":                        "",
		"func f(secret.T) {}":                                "",
		"type S int\nfunc (S) m() secret.T { return 0 }":     "",
		"type I interface{ m() secret.T }":                   "",
		"func F() { _ = secret.New() }":                      "",
		"type S struct{ next *S; F func(S) }":                "",
		"var V = strings.NewReader(``)":                      "",
		"const C = secret.C":                                 "",
		"type S struct{ F other.T }":                         "", // that package's own affair
		"type hidden struct{ F secret.T }\nvar v = hidden{}": "",
	} {
		const secret = "import \"example.org/m/internal/secret\"\n"
		source := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
		tree := fstest.MapFS{"go.mod": source("module example.org/m\n"),
			"internal/secret/a.go": source("package secret\ntype T int\nconst C = 1\nfunc New() T { return 0 }\n"),
			"other/a.go":           source("package other\n" + secret + "type T struct{ f secret.T }\n"),
			"open/a.go": source("package open\nimport \"strings\"\n" + secret + "import \"example.org/m/other\"\n" +
				"var _, _, _ = strings.ToUpper, secret.New, other.T{}\n" + text + "\n"),
			"open/a_test.go":    source("package open\nfunc G() secret.T { return 0 }"),
			"open/a_windows.go": source("package open\nfunc H() secret.T { return 0 }"),
			"cmd/a.go":          source("package main\n" + secret + "func F(secret.T) {}\nfunc main() {}"),
			"nested/go.mod":     source("module example.org/n\n"), "nested/a.go": source("pakcage"),
		}
		found, err := CheckAPI(tree)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(found, "\n")
		if want != "" {
			want += cannot
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", text, d)
		}
	}
}
