package main

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// hostile is one thing that a user does wrong, or that the world does to a user. The program runs as a process of its
// own, in a directory with a model, data and a run file.
type hostile struct {
	name string
	line string   // arguments, divided by spaces; empty: args has them
	args []string // where one of them has a space

	spoil func(*workshop)         // what has happened before
	wrap  func(*exec.Cmd)         // how the process is run: limits, users, standard output
	env   []string                // in addition to MILLRACE_CACHE
	stdin string                  // of the process
	check func(*workshop, result) // what else must be so afterwards

	status int    // of the process
	want   string // in the line of the error or, if the status is 0, in what is printed
	writes bool   // files may have changed: the run has begun, or it ends well
	slow   bool   // it is left out of the quick tests, which have a fifth of the others
}

// fixes are words that tell a user what to do, or what would be right.
var fixes = regexp.MustCompile(`(?i)\b(use|name|set|write|remove|choose|give|free|check|raise|lower|shorten|make|put|download|copy|leave|rename|save|wait|install|add|change|see|must|did you mean|close|move|restore|go back|start again|known are|supported are|is expected|resume from|correct|are not of one model|is there a loop|missing flags|is missing|show|shows|keys of)\b`)

// foreign are words of Go and of its libraries.
var foreign = regexp.MustCompile(`panic|goroutine|runtime error|unmarshal|\bstruct\b|interface ?\{|\bnil\b|strconv|(^|[ :])(json|yaml): |\d+ bit u?int|\.go:\d|%!|invalid character|\bEOF\b|0x[0-9a-f]{9,}`)

// TestHostile runs the hostile requests, files and directories; make hostile calls it.
func TestHostile(t *testing.T) {
	all := slices.Concat(hostileRequests(), hostileFiles(), hostileDirectories(), hostileMachine(t))
	seen := map[string]bool{}
	verbs := map[string]int{}
	var cases, well atomic.Int64
	t.Run("cases", func(t *testing.T) {
		for _, h := range all {
			if h.args == nil {
				h.args = strings.Fields(h.line)
			}
			if seen[h.name] {
				t.Fatalf("two cases are called %s", h.name)
			}
			seen[h.name] = true
			if len(h.args) > 0 {
				verbs[h.args[0]]++
			}
			t.Run(h.name, func(t *testing.T) {
				if testing.Short() && (h.slow || crc32.ChecksumIEEE([]byte(h.name))%5 > 0) {
					t.Skip("left out of the quick tests")
				}
				t.Parallel()
				cases.Add(1)
				defer func() {
					if t.Skipped() {
						cases.Add(-1)
					} else if !t.Failed() {
						well.Add(1)
					}
				}()
				h.run(t)
			})
		}
	})
	for _, verb := range verbsOfProgram {
		if first, _, _ := strings.Cut(verb, " "); verbs[first] == 0 {
			t.Errorf("no case of %s", first)
		}
	}
	if len(all) < 150 {
		t.Errorf("only %d cases", len(all))
	}
	fmt.Printf("hostile user: %d cases, %d well answered\n", cases.Load(), well.Load())
}

func (h hostile) run(t *testing.T) {
	dir := t.TempDir()
	home, cache := filepath.Join(dir, "home"), filepath.Join(dir, "cache")
	if err := os.MkdirAll(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	w := furnish(t, home)
	w.write("run.yaml", "model: model\ntokenizer: bytes\ndatasets: [{path: data/a.txt, type: text}]\nsequence_len: 32\nbatch_tokens: 128\nmax_steps: 3\n"+
		"learning_rate: 1e-3\noutput_dir: out\n")
	if h.spoil != nil {
		h.spoil(w)
	}
	before := contents(t, home)

	cmd := inProcess("hostile", h.args...)
	cmd.Dir = home
	cmd.Env = append(cmd.Env, "MILLRACE_CACHE="+cache, "HF_HUB_OFFLINE=1", "HF_HOME="+filepath.Join(dir, "hf"))
	cmd.Env = append(cmd.Env, h.env...)
	cmd.Stdin = strings.NewReader(h.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if h.wrap != nil {
		h.wrap(cmd)
	}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	if r.status != h.status {
		t.Errorf("exit status %d, want %d; %s%s", r.status, h.status, tail(r.stdout), tail(r.stderr))
	}
	if h.status == exitDone {
		if !strings.Contains(r.stdout+r.stderr, h.want) {
			t.Errorf("no %q in %s%s", h.want, tail(r.stdout), tail(r.stderr))
		}
	} else {
		h.answered(t, r)
	}
	if bad := foreign.FindString(r.stderr); bad != "" {
		t.Errorf("%q is a word of Go: %s", bad, tail(r.stderr))
	}
	if !utf8.ValidString(r.stderr) {
		t.Errorf("standard error is not UTF-8: %q", r.stderr)
	}
	for _, c := range r.stderr {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			t.Errorf("%U on standard error: %.300q", c, r.stderr)
			break
		}
	}
	if h.check != nil {
		h.check(w, r)
	}
	if !h.writes {
		if d := cmp.Diff(before, contents(t, home)); d != "" {
			t.Errorf("files were left over or changed (-before +after):\n%s", d)
		}
	}
	left, _ := filepath.Glob(filepath.Join(cache, "*", "*.tmp"))
	hidden, _ := filepath.Glob(filepath.Join(home, "*", ".*.tmp*"))
	if left = append(left, hidden...); len(left) > 0 {
		t.Errorf("half-written: %v", left)
	}
}

// answered holds the answer to a bad request, or of a machine that fails, against what users are promised.
func (h hostile) answered(t *testing.T, r result) {
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	line := lines[len(lines)-1]
	if len(lines) != 1 && !h.writes || strings.Count(r.stderr, "millrace: ") != 1 || !strings.HasPrefix(line, "millrace: ") {
		t.Errorf("not one line of error: %s", tail(r.stderr))
	}
	if len(line) > mostLine+100 {
		t.Errorf("a line of %d bytes", len(line))
	}
	if !strings.Contains(line, h.want) || h.want == "" {
		t.Errorf("%q is not in: %s", h.want, line)
	}
	if !fixes.MatchString(line) {
		t.Errorf("it does not say what to do: %s", line)
	}
	if r.stdout != "" {
		t.Errorf("on standard output: %s", tail(r.stdout))
	}
}

func tail(s string) string {
	const most = 1500
	if len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

var seed = maphash.MakeSeed()

// contents is all that is below a directory, with what is in it.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case e.Name() == ".lock": // it says who had the directory last
			return nil
		case e.Type().IsRegular():
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			h := maphash.Hash{}
			h.SetSeed(seed)
			n, err := io.Copy(&h, io.LimitReader(f, 64<<20))
			all[rel] = fmt.Sprintf("%d bytes, %x", n, h.Sum64())
			return err
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			all[rel] = "to " + to
			return err
		}
		all[rel] = e.Type().String()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// verbsOfProgram are the verbs, of which each has to have cases.
var verbsOfProgram = allVerbs
