package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/train/verbs"
)

func TestOneLine(t *testing.T) {
	var ids struct {
		IDs []int32 `json:"input_ids"`
	}
	denied := &fs.PathError{Op: "mkdir", Path: "ro/run", Err: syscall.EACCES}
	for want, err := range map[string]error{
		"output_dir: ro/run cannot be made: permission denied; change its permissions, or name another place":         fmt.Errorf("output_dir: %w", denied),
		"output_dir: ro/run cannot be made: permission denied; use /tmp":                                              fmt.Errorf("output_dir: %w; use /tmp", denied),
		"a.bin cannot be written: no space left on device; b":                                                         errors.Join(&fs.PathError{Op: "write", Path: "a.bin", Err: syscall.ENOSPC}, errors.New("b")),
		"data: there is no file or directory x.txt; check the name":                                                   fmt.Errorf("data: %w", &fs.PathError{Op: "open", Path: "x.txt", Err: syscall.ENOENT}),
		"reserve: no space left on device; free space there, or name another place":                                   fmt.Errorf("reserve: %w", syscall.ENOSPC),
		"tokenizer.json: it ends too early; it was cut: copy or download it again":                                    fmt.Errorf("tokenizer.json: %w", io.EOF),
		"input_ids has number 1.5 where a whole number of at most 32 bits belongs; write {}":                          fmt.Errorf("%w; write {}", json.Unmarshal([]byte(`{"input_ids": [1.5]}`), &ids)),
		`model "\x1b[31mred\x0d" is not there`:                                                                        errors.New("model \"\x1b[31mred\r\" is not there"),
		"value " + strings.Repeat("x", mostWord/2) + " ... " + strings.Repeat("x", mostWord/2-1) + ": write a number": errors.New("value " + strings.Repeat("x", 100_000) + ": write a number"),
		"two; lines; and more": errors.New("two \n\n  lines\nand more"),
	} {
		if got := oneLine(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if n := len(oneLine(errors.New(strings.Repeat("word ", 100_000)))); n > mostLine+10 {
		t.Errorf("%d bytes", n)
	}
}

func TestOtherWaysToAsk(t *testing.T) {
	useCache(t)
	for _, args := range [][]string{{"--version"}, {"-v"}, {"-V"}} {
		if got, want := invoke(t, args...).must(t).stdout, invoke(t, "version").must(t).stdout; got != want {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	for _, verb := range [][]string{nil, {"train"}, {"checkpoint", "list"}} {
		if got, want := invoke(t, append([]string{"help"}, verb...)...).must(t).stdout, invoke(t, append(verb, "--help")...).must(t).stdout; got != want {
			t.Errorf("help %v: %q, want %q", verb, got, want)
		}
	}
	if r := invoke(t, "help", "tarin"); r.status != exitBadRequest {
		t.Errorf("help tarin: status %d", r.status)
	}
}

// The library of flags speaks of bits and of how it read the line; users read what to write.
func TestFlagWords(t *testing.T) {
	useCache(t)
	for line, want := range map[string]string{
		"preview --limit -1":                      "--limit: write a value that begins with a dash after =, as --limit=-1",
		"preview --limit x":                       `--limit: it must be a whole number, not "x"`,
		"preview --limit":                         "--limit: a value is missing",
		"generate --model m --prompt p --top-p x": `--top-p: it must be a number, not "x"`,
		"generate --model m --prompt p --seed=-1": `--seed: it must be a whole number, not "-1"`,
		"train --trace=maybe":                     "--trace: it takes no value, or true or false",
		"import a.gguf":                           "DIR is missing",
		"import":                                  "FILE.gguf is missing",
		"generate --model m --prompt p --device":  "--device: a value is missing",
	} {
		r := invoke(t, strings.Fields(line)...)
		if r.status != exitBadRequest || !strings.HasPrefix(r.stderr, "millrace: "+want) || strings.Contains(r.stderr, "bit") {
			t.Errorf("%s: status %d, %q, want %q", line, r.status, r.stderr, want)
		}
	}
}

func TestMarkedExample(t *testing.T) {
	pieces := []verbs.PreviewPiece{{Text: "a\x1b", Trained: false}, {Text: "b", Trained: true}}
	for want, got := range map[string]string{
		"a\x1b[[b]]":                 marked(pieces, false, true),
		"a\\x1b\x1b[32m[[b]]\x1b[0m": marked(pieces, true, true),
		"a\\x1b[[b]]":                marked(pieces, true, false), // NO_COLOR
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The output of a model with a byte tokenizer cannot clear the screen.
func TestHarmless(t *testing.T) {
	var b strings.Builder
	n, err := harmless{&b}.Write([]byte("a\x1b[2J\xff\n"))
	if n != 7 || err != nil || b.String() != "a\\x1b[2J\\xff\n" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
}

// Standard error spells out what acts on a terminal, of all who write to it; bars and what clears them go as they are.
func TestStandardErrorIsHarmless(t *testing.T) {
	var got strings.Builder
	p := &progress{w: &got, terminal: true}
	fmt.Fprintf(p, "note: %s\n", "a\x1b]0;title\x07.txt")
	p.line("%s", "b\x9b2J\rc")
	bar := console.Out{Writer: p, Terminal: true}.Bar("d\x1b[2J")
	terminal.Draw(p, terminal.EraseLine+"[##  ]")
	bar.End() // was not drawn
	want := `note: a\x1b]0;title\x07.txt` + "\n" + terminal.EraseLine + `b\x9b2J\x0dc` + "\n" +
		terminal.EraseLine + "[##  ]"
	if got.String() != want {
		t.Errorf("%q, want %q", got.String(), want)
	}
}
