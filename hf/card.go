package hf

import (
	"bytes"
	"errors"
	"io"
	"io/fs"

	"github.com/millrace/millrace/internal/below"
)

// CardName is the file of a model card.
const CardName = "README.md"

// CardMark is in the cards that go with trained models. A card without it is a user's own, and is not replaced.
// It is a comment in the head, and comes before all that can be long.
const CardMark = "# Millrace writes this card with the model. Remove this line to keep changes of your own."

// maxCardBytes is above the cards that the hub has: results of many benchmarks take some MB.
const maxCardBytes = 64 << 20

// ReadCard reads the card of a model directory; nil if the directory has no card.
func ReadCard(dir string) ([]byte, error) {
	text, err := below.Read(dir, CardName, maxCardBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// isOwnCard reports whether a directory has a card that this program wrote.
func isOwnCard(dir string) bool {
	f, err := below.Open(dir, CardName)
	if err != nil {
		return false
	}
	defer f.Close()
	front, _ := io.ReadAll(io.LimitReader(f, 4096)) // what cannot be read has no mark
	return bytes.Contains(front, []byte(CardMark))
}
