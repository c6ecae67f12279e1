package tokenizer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"
)

// The files give the ids of the byte tokenizer, for all bytes that a text can have, and the texts back.
func TestFilesOfBytes(t *testing.T) {
	dir := t.TempDir()
	for name, doc := range BytesFiles() {
		if err := os.WriteFile(filepath.Join(dir, name), doc, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	bytes := Bytes()
	if files.EOS() != bytes.EOS() || files.BOS() != None || files.VocabSize() != bytes.VocabSize() {
		t.Fatalf("eos %d, bos %d, %d tokens", files.EOS(), files.BOS(), files.VocabSize())
	}
	texts := []string{"", "a b  c\n\n\t'll é 🎉 \u00a0\u00ad\u0100\x00\x7f"}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var text []rune
		for range rng.IntN(40) {
			if r := rune(rng.IntN([]int{0x80, 0x800, utf8.MaxRune + 1}[rng.IntN(3)])); utf8.ValidRune(r) {
				text = append(text, r)
			}
		}
		texts = append(texts, string(text))
	}
	for _, text := range texts {
		ids := files.Encode(text, true)
		if want := bytes.Encode(text, true); !slices.Equal(ids, want) {
			t.Fatalf("%q: %v, want %v", text, ids, want)
		}
		if got := files.Decode(append(ids, byteEOS), true); got != text {
			t.Fatalf("%q comes back as %q", text, got)
		}
	}
	for id := range int32(256) {
		if got, want := files.Decode([]int32{id}, false), bytes.Decode([]int32{id}, false); got != want {
			t.Errorf("token %d is %q, want %q", id, got, want)
		}
	}
}
