package main

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/runfile/othertrainers"
)

// wrongRequest says in our words what the library of flags says of a command line in its own: what is wrong, what was
// probably meant, and which help has more.
func wrongRequest(err error, root *kong.Node, args []string) error {
	verb, named := verbNamed(root, args)
	text := flagWords(err).Error()
	switch word, kind := unknownWord(text); {
	case kind == "flag" && readsRunFile(verb):
		if advice := keyAdvice(word, args); advice != "" {
			text = fmt.Sprintf("unknown flag %s: %s", word, advice)
		}
	case kind == "argument" && len(verb.Children) > 0:
		text = strings.Replace(text, "unexpected argument "+word, "there is no command "+strings.TrimSpace(named+" "+word), 1)
	case kind == "argument" && verb.Name == "generate":
		text += ": write --prompt " + quotedWord(word)
	}
	help := "millrace " + strings.TrimSpace(named+" --help")
	if text == err.Error() {
		return fmt.Errorf("%w; see %s", err, help)
	}
	return fmt.Errorf("%s; see %s", text, help)
}

// verbNamed finds the verb that a command line begins with, as far as it is one.
func verbNamed(root *kong.Node, args []string) (verb *kong.Node, named string) {
	verb = root
	for _, word := range args {
		next := childOf(verb, word)
		if next == nil {
			break
		}
		verb, named = next, strings.TrimSpace(named+" "+word)
	}
	return verb, named
}

var unknownWords = regexp.MustCompile(`^un(?:known|expected) (flag|argument) (.*?)(?:, did you mean .*)?$`)

// unknownWord finds the word that the library of flags did not know, and whether it is a flag or an argument.
func unknownWord(text string) (word, kind string) {
	if m := unknownWords.FindStringSubmatch(text); m != nil {
		return m[2], m[1]
	}
	return "", ""
}

// readsRunFile reports whether a verb takes settings of a run file.
func readsRunFile(verb *kong.Node) bool { return flagOf(verb, "--set") != nil }

// keyAdvice says how a key of a run file is set that was written as a flag; empty where there is no such key. A key
// that only other trainers have gets the advice that a run file with it gets.
func keyAdvice(flag string, args []string) string {
	name, value, hasValue := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
	for i, arg := range args {
		if arg == flag && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			value, hasValue = args[i+1], true
		} else if rest, ok := strings.CutPrefix(arg, flag+"="); ok {
			value, hasValue = rest, true
		}
	}
	if !hasValue {
		value = "VALUE"
	}
	fold := strings.NewReplacer("-", "", "_", "", ".", "").Replace
	found := ""
	keys(reflect.TypeFor[runfile.Config](), "", false, func(key string) {
		if fold(key) == fold(name) {
			found = key
		}
	})
	if found != "" {
		return "write " + quotedWord(found+"="+value)
	}
	row, ok := othertrainers.Lookup(strings.ReplaceAll(name, "-", "_"))
	switch {
	case !ok:
		return ""
	case row.Note == "" && row.Drop == "" && runfile.Order(row.Use) >= 0:
		return "write " + quotedWord(row.Use+"="+value)
	}
	return row.Advice()
}

// quotedWord is a word as a shell reads it.
func quotedWord(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\$`*?[]{}()<>|&;#!~") {
		return word
	}
	return strconv.Quote(word)
}

// flagWords says in our words what the library of flags says in its own.
func flagWords(err error) error {
	text := err.Error()
	for _, r := range flagPhrases {
		text = r.from.ReplaceAllString(text, r.to)
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

var flagPhrases = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^(--[a-z-]+): expected .* but got "(-[^"]*)" \((?:short|long) flag\); perhaps try .*`), `$1: write a value that begins with a dash after =, as $1=$2`},
	{regexp.MustCompile(`: expected .* but got "EOL".*`), `: a value is missing`},
	{regexp.MustCompile(`: expected (?:a valid \d+ bit u?int|an int|int value) but got ("[^"]*")(?: \([a-z ]+\))?`), `: it must be a whole number, not $1`},
	{regexp.MustCompile(`: expected a float but got ("[^"]*")(?: \([a-z ]+\))?`), `: it must be a number, not $1`},
	{regexp.MustCompile(`^expected "<([^>]+)>.*`), `$1 is missing`},
	{regexp.MustCompile(`^(--[a-z-]+): bool value must be .* but got (.*)`), `$1: it takes no value, or true or false, not $2`},
}
