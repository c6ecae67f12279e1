package main

import (
	_ "embed"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
)

type completionCmd struct {
	Shell string `arg:"" name:"SHELL" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionCmd) Help() string {
	return `Prints a script that makes the shell complete verbs, flags, their values, keys of run files, and the names of
machines and shapes. The script asks the program, so it stays right after an update. Packages install it.

Examples:

  source <(millrace completion bash)
  millrace completion zsh > "${fpath[1]}/_millrace"
  millrace completion fish > ~/.config/fish/completions/millrace.fish`
}

//go:embed completion/millrace.bash
var bashCompletion string

//go:embed completion/_millrace
var zshCompletion string

//go:embed completion/millrace.fish
var fishCompletion string

// Run prints a script.
func (c *completionCmd) Run(p *program) error {
	scripts := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	_, err := io.WriteString(p.stdout, scripts[c.Shell])
	return err
}

// completeCmd answers the scripts. It prints the words that the last word may become: a line for each, with a tab and
// its meaning. The last line is a colon and a mode: with "files" and "dirs" the shell adds names of these; with
// "nospace" no space follows the word.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after the program's name, the last one as far as it is typed."`
}

// Run answers.
func (c *completeCmd) Run(p *program) error {
	parser, err := newParser(io.Discard, io.Discard)
	if err != nil {
		return err
	}
	words := c.Words
	if len(words) > 0 && words[0] == "--" { // the scripts put it before words that may be flags
		words = words[1:]
	}
	if len(words) > 1 && words[0] == "help" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	found := complete(parser.Model.Node, words)
	var b strings.Builder
	for _, w := range found.words {
		if typed := words[len(words)-1]; strings.HasPrefix(w.text, typed) && (w.text != typed || found.mode != "nospace") {
			fmt.Fprintf(&b, "%s\t%s\n", w.text, w.meaning)
		}
	}
	return p.printf("%s:%s\n", &b, found.mode)
}

// candidate is a word that may stand somewhere.
type candidate struct{ text, meaning string }

type candidates struct {
	words []candidate
	mode  string
}

// complete lists all words that are valid where the last word is, whatever it begins with.
func complete(node *kong.Node, words []string) candidates {
	before, last := words[:len(words)-1], words[len(words)-1]
	var waits *kong.Flag // its value is the next word
	argument := 0
	for _, word := range before {
		name, _, hasValue := strings.Cut(word, "=")
		switch {
		case waits != nil:
			waits = nil
		case strings.HasPrefix(word, "-"):
			if f := flagOf(node, name); f != nil && !f.IsBool() && !hasValue {
				waits = f
			}
		case childOf(node, word) != nil:
			node = childOf(node, word)
		default:
			argument++
		}
	}
	if waits != nil {
		return values(waits.Value)
	}
	if name, _, hasValue := strings.Cut(last, "="); hasValue && strings.HasPrefix(last, "-") {
		f := flagOf(node, name)
		if f == nil || f.IsBool() {
			return candidates{}
		}
		found := values(f.Value)
		for i := range found.words {
			found.words[i].text = name + "=" + found.words[i].text
		}
		return found
	}
	if strings.HasPrefix(last, "-") {
		return flags(node)
	}
	var found candidates
	for _, child := range node.Children {
		if !child.Hidden {
			found.words = append(found.words, candidate{child.Name, child.Help})
		}
	}
	if n := len(node.Positional); argument >= n && n > 0 && node.Positional[n-1].IsCumulative() {
		argument = n - 1
	}
	if argument < len(node.Positional) {
		return values(node.Positional[argument])
	}
	return found
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}

// flagOf finds a flag by --name or -n.
func flagOf(node *kong.Node, word string) *kong.Flag {
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
				return f
			}
			for _, alias := range f.Aliases {
				if word == "--"+alias {
					return f
				}
			}
		}
	}
	return nil
}

func flags(node *kong.Node) (found candidates) {
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			found.words = append(found.words, candidate{"--" + f.Name, f.Help})
		}
	}
	return found
}

// values lists the values of a flag or an argument. The tag "complete", the parser's enumeration or the placeholder
// declares them, as words between bars; a word in capitals is a kind of values.
func values(v *kong.Value) (found candidates) {
	declared := v.Tag.Get("complete")
	if declared == "" {
		declared = strings.ReplaceAll(v.Enum, ",", "|")
	}
	if declared == "" {
		declared = v.Tag.PlaceHolder
	}
	if declared == "" && v.Flag == nil {
		declared = v.Name
	}
	for word := range strings.SplitSeq(declared, "|") {
		switch word {
		case "DIR":
			found.mode = "dirs"
		case "FILE", "FILE.gguf":
			found.mode = "files"
		case "MACHINE":
			found.mode = "files"
			for _, m := range plan.Machines() {
				found.words = append(found.words, candidate{m.Name, m.Machine.Name})
			}
		case "NETWORK":
			for _, name := range plan.Networks() {
				found.words = append(found.words, candidate{name, "network between hosts"})
			}
		case "SHAPE":
			for _, name := range plan.Shapes() {
				found.words = append(found.words, candidate{name, "published shape"})
			}
		case "KEY=VALUE":
			found.mode = "nospace"
			keys(reflect.TypeFor[runfile.Config](), "", false, func(key string) {
				found.words = append(found.words, candidate{key + "=", "key of run.yaml"})
			})
		default:
			if word != strings.ToUpper(word) || strings.ContainsAny(word, "0123456789") {
				found.words = append(found.words, candidate{word, ""})
			}
		}
	}
	return found
}

// keys calls found with every key of a run file. Nested keys have a dot; keys of list entries, which entries asks
// for, have no prefix.
func keys(t reflect.Type, prefix string, entries bool, found func(string)) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "":
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[runfile.Bytes]():
			keys(f.Type, prefix+name+".", entries, found)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			found(prefix + name)
			if entries {
				keys(f.Type.Elem(), "", entries, found)
			}
		default:
			found(prefix + name)
		}
	}
}
