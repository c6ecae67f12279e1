//go:build ignore

// Makes opticks.txt.gz of the text that Go's own tests compress: Isaac Newton, Opticks, the fourth edition of 1730,
// which is in the public domain. Italics, illustrations, footnotes and tables are left out, characters are ASCII, and
// each paragraph is one line.
//
//	go run demo/opticks_text.go    # in the root of the repository
package main

import (
	"bytes"
	"compress/gzip"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

func main() {
	book, err := os.ReadFile(filepath.Join(runtime.GOROOT(), "src/testdata/Isaac.Newton-Opticks.txt"))
	if err != nil {
		log.Fatal(err)
	}
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	w.Write([]byte(clean(string(book))))
	w.Close()
	if err := os.WriteFile("demo/opticks.txt.gz", packed.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}

var (
	ascii = strings.NewReplacer("_", "", "æ", "ae", "Æ", "AE", "œ", "oe", "é", "e", "è", "e", "×", "x", "´", "'",
		"°", " deg.", "§", "Sect.", "½", "1/2", "\r", "")
	greek    = regexp.MustCompile(`\[Greek:\s*(\w*)\]`)
	note     = regexp.MustCompile(`\[[A-Z]\]`)
	spaces   = regexp.MustCompile(`\s+`)
	leftOut  = regexp.MustCompile(`^\[(Illustration|[A-Z]\])|^FOOTNOTES|--\+--|\|.*\||\* \* \*|[^ -~\n]|^ {3}`)
	sentence = regexp.MustCompile(`[a-z]{2,} [a-z]+.*[.:;?!]\)?$`)
)

// clean keeps paragraphs that hold a sentence.
func clean(book string) string {
	var text strings.Builder
	_, book, _ = strings.Cut(book, "Advertisement I\n")
	for paragraph := range strings.SplitSeq(ascii.Replace(book), "\n\n") {
		paragraph = strings.Trim(greek.ReplaceAllString(paragraph, "$1"), "\n")
		if leftOut.MatchString(paragraph) {
			continue
		}
		paragraph = strings.TrimSpace(spaces.ReplaceAllString(note.ReplaceAllString(paragraph, ""), " "))
		if sentence.MatchString(paragraph) || strings.HasPrefix(paragraph, "The PROOF") {
			text.WriteString(paragraph + "\n")
		}
	}
	return text.String()
}
