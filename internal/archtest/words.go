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
	// literals are looked for first, in lower case: a line with none of them cannot match the pattern.
	literals []string
	pattern  *regexp.Regexp
	instead  string
	except   []string // trees where the words mean something else
}

// habits are looked for in every line of prose and code, in any case.
var habits = []habit{
	word(`behind`, `"after", "beyond", "in the background"`, "behind"),
	word(`(go|goes|going|gone|went) on`, `"continue", "resume"`, "go on", "goes on", "going on", "gone on", "went on"),
	word(`so many`, `"n"`, "so many"),
	word(`anew`, `"again", "from the start"`, "anew"),
	word(`for ever`, `"forever", "without end"`, "for ever"),
	word(`mend(s|ed|ing)?`, `"fix"`, "mend"),
	word(`whoever|nobody|somebody`, `the noun: "the caller", "no process", "a user"`, "whoever", "nobody", "somebody"),
	word(`but for`, `"except"`, "but for"),
	word(`as ever`, `"as before"`, "as ever"),
	word(`in work`, `"in progress", "in use"`, "in work"),
	word(`(at|in) hand`, `"available", "spare"`, "at hand", "in hand"),
	word(`to it comes?|comes? to be`, `"is added", "becomes"`, "to it come", "come to be", "comes to be"),
	{literals: []string{"is none", "are none", "was none", "were none"},
		pattern: regexp.MustCompile(`\b([Ii]s|[Aa]re|[Ww]as|[Ww]ere) none\b`),
		instead: `"does not exist", "there is no ..."`, except: []string{"data/template"}},
	word(`hence|thus|upon|lest|thereof|whereof|whence`, `"so", "on", "of it"`,
		"hence", "thus", "upon", "lest", "thereof", "whereof", "whence"),
	word(`beside`, `"next to", "with", "compared with"`, "beside"),
	word(`lies?|lay`, `"is", "is stored"`, "lie", "lay"),
	word(`leaves? again as`, `"stream out", "go back as"`, "leave again as", "leaves again as"),
	word(`in the place of`, `"instead of"`, "in the place of"),
	word(`(is|are) had`, `the verb: "take", "get"`, "is had", "are had"),
	{literals: []string{"what "},
		pattern: regexp.MustCompile(`(^[ \t]*|// |[.:;] )What (is|are|was|were|it|they|a|an|the) [^?]*$`),
		instead: `the noun, and then the verb`},
	{literals: []string{"// "},
		pattern: regexp.MustCompile(`^// [A-Za-z]+ (is|are) (what|those|that|how|when|where|who|whether)\b`),
		instead: `a verb: "length returns the length of a piece", "arguments holds the arguments of a call"`},
}

// word makes a habit of words in any case.
func word(alternatives, instead string, literals ...string) habit {
	return habit{literals: literals, pattern: regexp.MustCompile(`(?i)\b(` + alternatives + `)\b`), instead: instead}
}

// find returns the words of a line that match the pattern; "" if none do. lower is the line in lower case.
func (h *habit) find(line, lower string) string {
	if !slices.ContainsFunc(h.literals, func(l string) bool { return strings.Contains(lower, l) }) {
		return ""
	}
	return h.pattern.FindString(line)
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
			line := lines.Text()
			lower := strings.ToLower(line)
			for i := range habits {
				h := &habits[i]
				if m := h.find(line, lower); m != "" && !withinAny(path.Dir(name), h.except) {
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
