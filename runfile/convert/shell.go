package convert

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/runfile"
)

// script is a shell script that starts a trainer: the way in which verl's runs and many of TRL's are given. Of it the
// assignments of variables count, in their order, and the command that has the settings, as words KEY=VALUE with dots
// in KEY (Hydra), or as --key VALUE after a script of Python. Nothing is run: what other programs print is not known.
type script struct {
	vars   map[string]string
	arrays map[string][]string
	depth  int // of if, for, while and case
	unsure map[string]bool
	noted  []string // names that were used and that the script does not decide
	words  []string // of the command with the most settings
	others int      // further commands that have some
	room   int      // bytes that variables may still become: some scripts double theirs
}

// Bounds of a script: what its variables become, and how deep these are within each other.
const (
	mostExpanded  = 4 << 20
	deepestInside = 16
	mostInside    = 4096 // bytes between the braces, or parentheses, of $
)

// isScript reports whether a file is a shell script.
func isScript(name string, doc []byte) bool {
	ext := filepath.Ext(name)
	return ext == ".sh" || ext == ".bash" || bytes.HasPrefix(doc, []byte("#!")) && bytes.Contains(doc[:min(len(doc), 64)],
		[]byte("sh"))
}

// readScript reads a script. The program is the script of Python, or the module, that the command starts.
func readScript(doc []byte) (values map[string]any, program string, s *script) {
	s = &script{vars: map[string]string{}, arrays: map[string][]string{}, unsure: map[string]bool{}, room: mostExpanded}
	l := &shellText{text: strings.ReplaceAll(string(doc), "\\\n", " "), s: s}
	for {
		words, more := l.command()
		s.command(words)
		if !more {
			break
		}
	}
	values, program = settingsOf(s.words)
	return values, program, s
}

// hydraWord is a setting of Hydra, whose keys have a dot.
var hydraWord = regexp.MustCompile(`^\+{0,2}[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)+=`)

var assignment = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)\+?=`)

// settingsOf are the settings among the words of a command.
func settingsOf(words []string) (values map[string]any, program string) {
	values = map[string]any{}
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case hydraWord.MatchString(w):
			key, value, _ := strings.Cut(strings.TrimLeft(w, "+"), "=")
			values[key] = shellValue(value)
		case program == "" && (strings.HasSuffix(w, ".py") || i > 0 && words[i-1] == "-m" || i > 0 && words[i-1] == "trl"):
			program = strings.TrimSuffix(filepath.Base(w), ".py")
		case program != "" && strings.HasPrefix(w, "--") && len(w) > 2:
			key, _, isPair := strings.Cut(strings.ReplaceAll(w[2:], "-", "_"), "=")
			if isPair {
				_, value, _ := strings.Cut(w, "=")
				values[key] = shellValue(value)
				continue
			}
			var all []any
			for i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") && !hydraWord.MatchString(words[i+1]) {
				i++
				all = append(all, shellValue(words[i]))
			}
			switch len(all) {
			case 0:
				values[key] = true
			case 1:
				values[key] = all[0]
			default:
				values[key] = all
			}
		}
	}
	return values, program
}

// shellValue is a word as the value of a setting.
func shellValue(word string) any {
	values, err := runfile.Mapping([]byte("value: " + word + "\n"))
	if err != nil || strings.ContainsAny(word, "#\n") {
		return word
	}
	if text, isText := values["value"].(string); isText && slices.Contains([]string{"True", "False"}, text) {
		return text == "True"
	}
	return values["value"]
}

// command takes the words of a command.
func (s *script) command(words []string) {
	for len(words) > 0 {
		switch words[0] {
		case "if", "for", "while", "case":
			s.depth++
		case "fi", "done", "esac":
			s.depth = max(s.depth-1, 0)
		case "then", "else", "elif", "do", "export", "declare", "local", "readonly", "{", "}", "nohup", "-x":
		default:
			s.simple(words)
			return
		}
		words = words[1:]
	}
}

// simple takes a command without words of the shell before it.
func (s *script) simple(words []string) {
	for len(words) > 0 {
		m := assignment.FindStringSubmatch(words[0])
		if m == nil {
			break
		}
		if name := m[1]; s.depth > 0 {
			s.unsure[name] = true
		} else {
			delete(s.unsure, name)
		}
		s.vars[m[1]], words = words[0][len(m[0]):], words[1:]
	}
	settings := func(words []string) int {
		values, _ := settingsOf(words)
		return len(values)
	}
	if n := settings(words); n > 2 {
		if s.words != nil {
			s.others++
		}
		if n > settings(s.words) {
			s.words = slices.Clone(words)
		}
	}
}

// note remembers a name that the script does not decide.
func (s *script) note(name string) {
	if !slices.Contains(s.noted, name) {
		s.noted = append(s.noted, name)
	}
}

// undecided are the names that the script does not decide: those that the command has, and those of branches.
func (s *script) undecided() (unknown, unsure []string) {
	command := strings.Join(s.words, " ")
	for _, name := range s.noted {
		if s.unsure[strings.TrimPrefix(name, "$")] {
			unsure = append(unsure, name)
		} else if strings.Contains(command, name) {
			unknown = append(unknown, name)
		}
	}
	return unknown, unsure
}

// shellText is the text of a script from a place on.
type shellText struct {
	text string
	at   int
	s    *script
	end  string // of a document in the script (<<END), after the line
	deep int    // within how many others it is
}

// command reads the words of the next command, with variables in place. more is false at the end.
func (l *shellText) command() (words []string, more bool) {
	var word strings.Builder
	open := false     // the word has begun
	isTarget := false // the word is where output goes
	end := func() {
		if open && !isTarget {
			words = append(words, word.String())
		}
		isTarget = isTarget && !open
		word.Reset()
		open = false
	}
	for l.at < len(l.text) {
		c := l.text[l.at]
		l.at++
		switch {
		case c == '#' && !open:
			l.line()
		case c == ' ' || c == '\t' || c == '\r':
			end()
		case c == '\n':
			end()
			l.document()
			return words, true
		case c == ';' || c == '&' || c == '|' || c == ')':
			end()
			return words, true
		case c == '(' && open && strings.HasSuffix(word.String(), "="):
			l.array(word.String())
			word.Reset()
			open = false
		case c == '(':
			end()
			return words, true
		case c == '<' || c == '>':
			isTarget = strings.Trim(word.String(), "0123456789") == "" // of 2>&1 the 2 is no word
			end()
			rest := l.text[l.at:min(l.at+mostInside, len(l.text))]
			if delimiter, isDocument := strings.CutPrefix(rest, "<"); c == '<' && isDocument {
				l.end = strings.Trim(strings.Fields(delimiter + " -")[0], `<-'"`)
			}
			for l.at < len(l.text) && strings.IndexByte("<>&-", l.text[l.at]) >= 0 {
				l.at++
			}
			isTarget = true
		case c == '\'':
			open = true
			i := strings.IndexByte(l.text[l.at:], '\'')
			if i < 0 {
				i = len(l.text) - l.at
			}
			word.WriteString(l.text[l.at : l.at+i])
			l.at = min(l.at+i+1, len(l.text))
		case c == '"':
			if isNothing := l.quoted(&word, &words); !isNothing {
				open = true
			}
		case c == '\\' && l.at < len(l.text):
			open = true
			word.WriteByte(l.text[l.at])
			l.at++
		case c == '$':
			text, all, isAll := l.expand()
			if isAll {
				end()
				words = append(words, all...)
				continue
			}
			assigns := len(words) == 0 && assignment.MatchString(word.String())
			for i, part := range fieldsOf(text, assigns) {
				if i > 0 {
					end()
				}
				open = open || part != ""
				word.WriteString(part)
			}
		default:
			open = true
			word.WriteByte(c)
		}
	}
	end()
	return words, false
}

// fieldsOf are the words that a variable without quotes becomes: the first one continues a word, and after the last
// white space another begins. One that is assigned to another variable is one word.
func fieldsOf(text string, assigns bool) []string {
	if assigns || !strings.ContainsAny(text, " \t\n") {
		return []string{text}
	}
	all := strings.Fields(text)
	if text != strings.TrimLeft(text, " \t\n") {
		all = append([]string{""}, all...)
	}
	if text != strings.TrimRight(text, " \t\n") {
		all = append(all, "")
	}
	return all
}

// line skips what is left of a line.
func (l *shellText) line() {
	for l.at < len(l.text) && l.text[l.at] != '\n' {
		l.at++
	}
}

// document skips the lines of a document in the script.
func (l *shellText) document() {
	for l.end != "" && l.at < len(l.text) {
		first := l.at
		l.line()
		if strings.TrimSpace(l.text[first:l.at]) == l.end {
			l.end = ""
		}
		l.at = min(l.at+1, len(l.text))
	}
}

// quoted reads what double quotes have. It is nothing, and not an empty word, where it is a list without words.
func (l *shellText) quoted(word *strings.Builder, words *[]string) (isNothing bool) {
	for l.at < len(l.text) && l.text[l.at] != '"' {
		c := l.text[l.at]
		l.at++
		switch {
		case c == '\\' && l.at < len(l.text) && strings.IndexByte("\"\\$`", l.text[l.at]) >= 0:
			word.WriteByte(l.text[l.at])
			l.at++
		case c == '$':
			text, all, isAll := l.expand()
			if isAll && len(all) > 0 {
				*words = append(*words, all[:len(all)-1]...)
				text = all[len(all)-1]
			}
			isNothing = isAll && text == "" && l.at < len(l.text) && l.text[l.at] == '"' && word.Len() == 0
			word.WriteString(text)
		default:
			word.WriteByte(c)
		}
	}
	l.at = min(l.at+1, len(l.text))
	return isNothing
}

// array reads the words of NAME=( ... ), or NAME+=( ... ).
func (l *shellText) array(assigns string) {
	name, adds := strings.CutSuffix(strings.TrimSuffix(assigns, "="), "+")
	depth, first := 1, l.at
	for l.at < len(l.text) && depth > 0 {
		switch l.text[l.at] {
		case '(':
			depth++
		case ')':
			depth--
		}
		l.at++
	}
	inner := &shellText{text: l.text[first:max(l.at-1, first)], s: l.s, deep: l.deep + 1}
	var all []string
	if adds {
		all = l.s.arrays[name]
	}
	for inner.deep < deepestInside {
		words, more := inner.command()
		all = append(all, words...)
		if !more {
			break
		}
	}
	l.s.arrays[name] = all
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)

// expand reads what follows a dollar sign. A list of words is of an array, or of the arguments of the script, which are
// not known and are left out.
func (l *shellText) expand() (text string, all []string, isAll bool) {
	rest := l.text[l.at:min(l.at+mostInside, len(l.text))]
	switch {
	case strings.HasPrefix(rest, "(("):
		if i := strings.Index(rest, "))"); i > 0 {
			// An expression may end in further parentheses of its own.
			for i+2 < len(rest) && rest[i+2] == ')' {
				i++
			}
			l.at += i + 2
			if n, ok := l.s.arithmetic(rest[2:i]); ok {
				return strconv.Itoa(n), nil, false
			}
			return "$" + rest[:i+2], nil, false
		}
	case strings.HasPrefix(rest, "("):
		depth := 0
		for i := range len(rest) {
			switch rest[i] {
			case '(':
				depth++
			case ')':
				depth--
			}
			if depth == 0 {
				l.at += i + 1
				l.s.note("$" + rest[:i+1])
				return "$" + rest[:i+1], nil, false
			}
		}
	case strings.HasPrefix(rest, "@"), strings.HasPrefix(rest, "*"):
		l.at++
		return "", nil, true
	case strings.HasPrefix(rest, "{"):
		depth := 0
		for i := range len(rest) {
			switch rest[i] {
			case '{':
				depth++
			case '}':
				depth--
			}
			if depth == 0 {
				l.at += i + 1
				return l.braces(rest[1:i])
			}
		}
	}
	if name := shellName.FindString(rest); name != "" {
		l.at += len(name)
		return l.s.variable(name), nil, false
	}
	return "$", nil, false
}

// braces is ${...}.
func (l *shellText) braces(inner string) (text string, all []string, isAll bool) {
	name := shellName.FindString(inner)
	switch after := inner[len(name):]; {
	case name == "" && (strings.HasPrefix(after, "@") || strings.HasPrefix(after, "*")):
		return "", nil, true
	case after == "[@]" || after == "[*]":
		for _, word := range l.s.arrays[name] {
			if l.s.room -= len(word) + 1; l.s.room < 0 {
				return "", nil, true
			}
			all = append(all, word)
		}
		return "", all, true
	case l.deep >= deepestInside:
	case name != "" && after == "":
		return l.s.variable(name), nil, false
	case name != "" && (strings.HasPrefix(after, ":-") || strings.HasPrefix(after, ":=") || strings.HasPrefix(after, "-")):
		if value, ok := l.s.vars[name]; ok && value != "" {
			return l.s.variable(name), nil, false
		}
		or := &shellText{text: strings.TrimLeft(after, ":-="), s: l.s, deep: l.deep + 1}
		words, _ := or.command()
		return strings.Join(words, " "), nil, false
	}
	l.s.note("${" + inner + "}")
	return "${" + inner + "}", nil, false
}

// variable is the value of a variable.
func (s *script) variable(name string) string {
	value, ok := s.vars[name]
	if !ok {
		s.note("$" + name)
		return "$" + name
	}
	if s.unsure[name] {
		s.note("$" + name)
	}
	if s.room -= len(value); s.room < 0 {
		return ""
	}
	return value
}

// arithmetic computes an expression of whole numbers with + - * / and parentheses.
func (s *script) arithmetic(text string) (n int, ok bool) {
	e := &expression{text: strings.ReplaceAll(strings.ReplaceAll(text, " ", ""), "$", ""), s: s}
	n = e.sum()
	return n, !e.failed && e.text == ""
}

type expression struct {
	text   string
	s      *script
	failed bool
}

func (e *expression) sum() int {
	n := e.product()
	for !e.failed && e.text != "" && (e.text[0] == '+' || e.text[0] == '-') {
		sign := e.text[0]
		e.text = e.text[1:]
		if m := e.product(); sign == '+' {
			n += m
		} else {
			n -= m
		}
	}
	return n
}

func (e *expression) product() int {
	n := e.factor()
	for !e.failed && e.text != "" && (e.text[0] == '*' || e.text[0] == '/') {
		sign := e.text[0]
		e.text = e.text[1:]
		switch m := e.factor(); {
		case sign == '*':
			n *= m
		case m == 0:
			e.failed = true
		default:
			n /= m
		}
	}
	return n
}

func (e *expression) factor() int {
	if rest, isOpen := strings.CutPrefix(e.text, "("); isOpen {
		e.text = rest
		n := e.sum()
		var closed bool
		e.text, closed = strings.CutPrefix(e.text, ")")
		e.failed = e.failed || !closed
		return n
	}
	inBraces := strings.HasPrefix(e.text, "{")
	e.text = strings.TrimPrefix(e.text, "{")
	digits := 0
	for digits < len(e.text) && e.text[digits] >= '0' && e.text[digits] <= '9' {
		digits++
	}
	word := e.text[:digits]
	if digits == 0 {
		name := shellName.FindString(e.text)
		digits, word = len(name), e.s.vars[name]
		if e.s.unsure[name] {
			e.s.note("$" + name)
		}
	}
	e.text = e.text[digits:]
	if inBraces {
		e.text = strings.TrimPrefix(e.text, "}")
	}
	n, err := strconv.Atoi(word)
	e.failed = e.failed || err != nil || digits == 0 || n > 1<<40
	return n
}
