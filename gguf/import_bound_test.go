package gguf

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
)

// longTokens are control tokens of zero bytes, each of which is six in JSON.
func longTokens(n int) *tokens {
	t := &tokens{parts: parts{normalizer: jsonNone, preTokenizer: jsonNone, decoder: jsonNone}}
	for i := range n {
		t.tokens = append(t.tokens, strings.Repeat("\x00", tokenizer.MaxTokenBytes-8)+fillerToken(i))
		t.types = append(t.types, tokenControl)
	}
	return t
}

// tokenizer.json is written in memory that does not grow with the vocabulary.
func TestTokenizerIsAStream(t *testing.T) {
	made := func(n int) uint64 {
		tok := longTokens(n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := tok.writeJSON(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(n)
	}
	if each := made(64); each > 64*tokenizer.MaxTokenBytes {
		t.Errorf("%d bytes for each token", each)
	}
}

// A tokenizer.json that no reader takes is an error before it is on the disk, and a context that has ended ends it.
func TestTokenizerIsBounded(t *testing.T) {
	if err := longTokens(400).writeJSON(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "more than 268435456 bytes") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	if err := longTokens(8).writeJSON(ctx, out); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	d := small("llama")
	file, dir := filepath.Join(t.TempDir(), "m.gguf"), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(file, d.bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Import(ctx, file, dir, ImportOptions{}); !errors.Is(err, context.Canceled) || len(leftovers(t, dir)) > 0 {
		t.Errorf("error %v, left over %v", err, leftovers(t, dir))
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
