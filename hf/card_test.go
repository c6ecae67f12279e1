package hf

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplaceCard: a model with the card that was written with it is replaced; a user's own card is not lost.
func TestReplaceCard(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	write := func() error {
		return WriteModel(dir, Model{Config: []byte("{}"), Tensors: []TensorSpec{f32Spec("empty", 0)},
			Data: func(func(Piece, error) bool) {}},
			WriteOptions{Replace: true})
	}
	card := filepath.Join(dir, CardName)
	for text, replaced := range map[string]bool{"---\n---\n" + CardMark + "\n# a": true, "# my own": false} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := write(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(card, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := write()
		if (err == nil) != replaced {
			t.Errorf("with the card %q: %v", text, err)
		}
		if !replaced {
			wantOneLine(t, err, CardName, "would be lost")
		}
		if doc, _ := os.ReadFile(card); (string(doc) == text) == replaced {
			t.Errorf("the card is now %q", doc)
		}
	}
}
