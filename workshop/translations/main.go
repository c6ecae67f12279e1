// Command translations compares the pages of docs/zh with the English pages that they were made from.
//
//	go run ./workshop/translations                             lists the sections whose English text has changed
//	go run ./workshop/translations -done docs/zh/data.md:2,5   the second and the fifth section are translated again
//	go run ./workshop/translations -done docs/zh/data.md       all of its sections are
//
// A page names its English page in its first line, and each of its sections has a hash of the English section that
// it was made from, in a line after the heading. So a change of an English page makes no Chinese page wrong: it makes
// a section of it out of date, and this program lists that. A section whose hash is that of the English one is held
// to it: code, words in backquotes, numbers, links and rows of tables are the same ([check]).
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	done := flag.String("done", "", "a `PAGE`, or PAGE:2,5 for sections of it, that is translated again: note its hashes")
	flag.Parse()
	if err := run(*done); err != nil {
		fmt.Fprintln(os.Stderr, "translations:", err)
		os.Exit(1)
	}
}

// run notes what is translated again, if anything is, and then prints what is out of date.
func run(done string) error {
	if done != "" {
		name, text, err := renew(os.DirFS("."), done)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			return err
		}
	}
	pages, err := load(os.DirFS("."))
	if err != nil {
		return err
	}
	for _, p := range pages {
		for _, line := range p.check(pages) {
			fmt.Println("wrong:", line)
		}
	}
	for _, p := range pages {
		lines := p.outdated()
		if len(lines) == 0 {
			fmt.Printf("%s: up to date with %s\n", p.name, p.original)
			continue
		}
		fmt.Printf("%s: %d of %d sections are out of date; git log -p %s shows the changes\n",
			p.name, len(lines), len(p.english), p.original)
		for _, line := range lines {
			fmt.Println("  " + line)
		}
	}
	return nil
}
