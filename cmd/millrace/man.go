package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

type manCmd struct {
	Dir string `arg:"" name:"DIR" help:"Directory to write; pages of the same names are replaced."`
}

func (*manCmd) Help() string {
	return `One page for the program, millrace.1, and one for each verb. They say what --help says. Packages install
them.

Example:

  millrace man ~/.local/share/man/man1`
}

// Run writes the pages.
func (c *manCmd) Run(p *program) error {
	parser, err := newParser(io.Discard, io.Discard)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o777); err != nil {
		return badFlag("%w", err)
	}
	for _, node := range nodes(parser.Model.Node) {
		if err := os.WriteFile(filepath.Join(c.Dir, pageOf(node)+".1"), []byte(manPage(parser.Model, node)),
			0o664); err != nil {
			return badFlag("%w", err)
		}
	}
	return nil
}

// nodes lists a node and all nodes below it, without those that help hides.
func nodes(node *kong.Node) []*kong.Node {
	all := []*kong.Node{node}
	for _, child := range node.Children {
		if !child.Hidden {
			all = append(all, nodes(child)...)
		}
	}
	return all
}

func pageOf(node *kong.Node) string { return strings.ReplaceAll(node.FullPath(), " ", "-") }

// manPage is a page for troff, with the macros of man(7).
func manPage(app *kong.Application, node *kong.Node) string {
	var b strings.Builder
	name := pageOf(node)
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"millrace %s\" \"User Commands\"\n", roff(strings.ToUpper(name)),
		roff(thisBuild().Version))
	help, text := node.Help, node.Help+"\n\n"+node.Detail
	if node == app.Node {
		help = "trains language models that do not fit on the device that computes"
	}
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(strings.TrimSuffix(help, ".")))
	synopsis := strings.TrimSpace(strings.TrimPrefix(node.Summary(), node.Path()))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n%s\n", roff(node.FullPath()), roff(synopsis))
	b.WriteString(".SH DESCRIPTION\n")
	manText(&b, strings.TrimSpace(text))
	if len(node.Children) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, child := range node.Children {
			if !child.Hidden {
				fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(pageOf(child)), roff(child.Help))
			}
		}
	}
	if len(node.Positional) > 0 {
		b.WriteString(".SH ARGUMENTS\n")
		for _, arg := range node.Positional {
			fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(arg.Name), roff(arg.Help))
		}
	}
	b.WriteString(".SH OPTIONS\n")
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			manFlag(&b, f)
		}
	}
	b.WriteString(".SH EXIT STATUS\n0: done. 1: failed. 2: the request is wrong. 130: interrupted, with nothing lost.\n")
	b.WriteString(".SH ENVIRONMENT\n.TP\n.B MILLRACE_CACHE\n" +
		"Where tokenized data, the measured machine and the choices of matrix algorithms are kept.\n")
	b.WriteString(".SH SEE ALSO\n")
	if parent := node.Parent; parent != nil {
		fmt.Fprintf(&b, ".BR %s (1)\n.br\n", roff(pageOf(parent)))
	}
	b.WriteString("https://github.com/millrace/millrace\n")
	return b.String()
}

func manFlag(b *strings.Builder, f *kong.Flag) {
	b.WriteString(".TP\n")
	if f.Short != 0 {
		fmt.Fprintf(b, "\\fB\\-%c\\fR, ", f.Short)
	}
	fmt.Fprintf(b, "\\fB%s\\fR", roff("--"+f.Name))
	if !f.IsBool() {
		fmt.Fprintf(b, "=\\fI%s\\fR", roff(strings.Trim(f.FormatPlaceHolder(), `"`)))
	}
	fmt.Fprintf(b, "\n%s\n", roff(f.Help))
	if f.Enum != "" {
		fmt.Fprintf(b, "One of %s.\n", roff(strings.ReplaceAll(f.Enum, ",", ", ")))
	}
	if f.HasDefault && f.Default != "" {
		fmt.Fprintf(b, "The default is %s.\n", roff(f.Default))
	}
}

// manText writes paragraphs; lines that are indented stay lines, in a fixed width.
func manText(b *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			fmt.Fprintf(b, ".PP\n.RS 4\n.EX\n%s\n.EE\n.RE\n", roff(strings.ReplaceAll("\n"+paragraph, "\n  ", "\n")[1:]))
		} else {
			fmt.Fprintf(b, ".PP\n%s\n", roff(paragraph))
		}
	}
}

// roff is text that troff shows as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
