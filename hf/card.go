package hf

import (
	"bytes"
	"io"
	"path/filepath"

	"github.com/millrace/millrace/vfs"
)

// CardName is the file of a model card.
const CardName = "README.md"

// CardMark is in the cards that go with trained models. A card without it is a user's own, and is not replaced.
const CardMark = "<!-- Millrace writes this card with the model. Remove this line to keep changes of your own. -->"

// isOwnCard reports whether a directory has a card that this program wrote.
func isOwnCard(dir string) bool {
	f, err := vfs.OpenRegular(filepath.Join(dir, CardName))
	if err != nil {
		return false
	}
	defer f.Close()
	front, _ := io.ReadAll(io.LimitReader(f, 4096)) // what cannot be read has no mark
	return bytes.Contains(front, []byte(CardMark))
}
