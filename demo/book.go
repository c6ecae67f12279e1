package demo

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"strings"
)

// Isaac Newton, Opticks, fourth edition, London 1730: in the public domain. README.md says where the text is from;
// opticks_text.go made the file.
//
//go:embed opticks.txt.gz
var packedBook []byte

const bookTitle = "Isaac Newton's Opticks (1730)"

// heldOutEvery is n where every n-th paragraph is held out. They are spread over the book, as its subjects are.
const heldOutEvery = 25

// readBook returns the text to train on and the text that is held out, a paragraph in each line.
func readBook() (train, heldOut string) {
	r, err := gzip.NewReader(bytes.NewReader(packedBook))
	if err != nil {
		panic(err) // it is part of the program
	}
	text, err := io.ReadAll(r)
	if err != nil {
		panic(err)
	}
	var parts [2]strings.Builder
	n := 0
	for line := range strings.Lines(string(text)) {
		part := &parts[0]
		if n++; n%heldOutEvery == 0 {
			part = &parts[1]
		}
		part.WriteString(line)
	}
	return parts[0].String(), parts[1].String()
}
