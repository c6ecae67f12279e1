package archtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The rule for prose is: name the noun, put the verb second, say what the thing does, one idea a sentence. A list of
// words cannot check that. It can find the habits that break the rule most often in this project, so that they do not
// come back.

// habit is a way to write that the project has given up.
type habit struct {
	pattern *regexp.Regexp
	instead string
	except  []string // trees where the words mean something else
}

// habits are looked for in every line of prose and code, in any case.
var habits = []habit{
	{pattern: word(`behind`), instead: `"after", "beyond", "in the background"`},
	{pattern: word(`(go|goes|going|gone|went) on`), instead: `"continue", "resume"`},
	{pattern: word(`so many`), instead: `"n"`},
	{pattern: word(`anew`), instead: `"again", "from the start"`},
	{pattern: word(`for ever`), instead: `"forever", "without end"`},
	{pattern: word(`mend(s|ed|ing)?`), instead: `"fix"`},
	{pattern: word(`whoever|nobody|somebody`), instead: `the noun: "the caller", "no process", "a user"`},
	{pattern: word(`but for`), instead: `"except"`},
	{pattern: word(`as ever`), instead: `"as before"`},
	{pattern: word(`in work`), instead: `"in progress", "in use"`},
	{pattern: word(`(at|in) hand`), instead: `"available", "spare"`},
	{pattern: word(`to it comes?|comes? to be`), instead: `"is added", "becomes"`},
	{pattern: regexp.MustCompile(`\b([Ii]s|[Aa]re|[Ww]as|[Ww]ere) none\b`), instead: `"does not exist", "there is no ..."`,
		except: []string{"data/template"}},
	{pattern: word(`hence|thus|upon|lest|thereof|whereof|whence`), instead: `"so", "on", "of it"`},
	{pattern: word(`beside`), instead: `"next to", "with", "compared with"`},
	{pattern: word(`lies?|lay`), instead: `"is", "is stored"`},
	{pattern: word(`leaves? again as`), instead: `"stream out", "go back as"`},
	{pattern: word(`in the place of`), instead: `"instead of"`},
	{pattern: word(`(is|are) had`), instead: `the verb: "take", "get"`},
	{pattern: regexp.MustCompile(`(^[ \t]*|// |[.:;] )What (is|are|was|were|it|they|a|an|the) [^?]*$`),
		instead: `the noun, and then the verb`},
}

func word(alternatives string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + alternatives + `)\b`)
}

// proseFiles are the endings of files whose words people read.
var proseFiles = []string{".go", ".md", ".py", ".sh", ".yaml", ".yml"}

// unread are files that keep the words: this list and its test, and the kernels' sources, since compiled/ holds
// checksums of their text. A change of a source comes with a compilation.
var unread = []string{
	"internal/archtest/words.go", "internal/archtest/words_test.go",
	"device/cuda/kernels/attention.py", "device/cuda/kernels/build.py", "device/cuda/kernels/matmul.py",
	"device/cuda/kernels/registry.py",
}

// PlainWords lists the habits in the texts and sources below root, a line each: file, line, the words, and what to
// say instead.
func PlainWords(root fs.FS) (found []string, err error) {
	err = walkProse(root, func(name string, text []byte) error {
		if slices.Contains(unread, name) {
			return nil
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, len(text)+1)
		for n := 1; lines.Scan(); n++ {
			for _, h := range habits {
				if m := h.pattern.FindString(lines.Text()); m != "" && !withinAny(path.Dir(name), h.except) {
					found = append(found, fmt.Sprintf("%s:%d: %q: say %s", name, n, strings.TrimSpace(m), h.instead))
				}
			}
		}
		return lines.Err()
	})
	return found, err
}

// made are folders of the root that programs fill.
var made = []string{"bin", "build", "dist"}

// walkProse reads the files whose words people read.
func walkProse(root fs.FS, read func(name string, text []byte) error) error {
	return fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || slices.Contains(made, name)):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains(proseFiles, path.Ext(name)):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		return read(name, text)
	})
}
