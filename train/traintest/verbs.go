package traintest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/runfile"
)

// Computes are the types that the law of budgets is tried with. Further families are compared with PyTorch alone: what
// they have that others lack is in blocks, and package stream holds those to its laws.
func Computes(t *testing.T, variant string) []string {
	if slices.Contains(modeltest.FamilyVariants(t), variant) {
		return nil
	}
	return []string{"f32", "bf16"}
}

// MustJSON is a value as JSON.
func MustJSON(v any) []byte {
	doc, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return doc
}

// ReadTensors reads a safetensors file of F32.
func ReadTensors(t testing.TB, path string) map[string][]float32 {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(doc)
	var header map[string]json.RawMessage
	if err := json.Unmarshal(doc[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	all := map[string][]float32{}
	for name, raw := range header {
		var e struct {
			DType   string
			Offsets [2]int `json:"data_offsets"`
		}
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(raw, &e); err != nil || e.DType != "F32" {
			t.Fatalf("%s: %s (%v)", name, raw, err)
		}
		x := make([]float32, (e.Offsets[1]-e.Offsets[0])/4)
		if _, err := binary.Decode(doc[8+int(n)+e.Offsets[0]:], binary.LittleEndian, x); err != nil {
			t.Fatal(err)
		}
		all[name] = x
	}
	return all
}

// Refused fails unless err is one line that says want and is marked as a bad request.
func Refused(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %q, want one line with %q", err, want)
	}
	if !errors.Is(err, blame.ErrRequest) {
		t.Errorf("not marked as a bad request: %v", err)
	}
}

// ByteTokens are the tokens of a text of ASCII by the tokenizer of bytes.
func ByteTokens(s string) []int32 {
	var ids []int32
	for _, b := range []byte(s) {
		ids = append(ids, int32(b))
	}
	return ids
}

// TokensFile writes the documents of a golden batch as sequences. In a golden batch a target is the next token of its
// document or -1; the label of a document's first token does not matter.
func TokensFile(t testing.TB, b modeltest.Batch) (path string, sequences [][3]int) {
	t.Helper()
	var ids, labels [][]int32
	for row, m := range b {
		for first := 0; first < len(m.IDs); first = int(m.DocEnd[first]) {
			end := int(m.DocEnd[first])
			l := []int32{data.Ignore}
			for _, target := range m.Targets[first : end-1] {
				if target < 0 {
					target = data.Ignore
				}
				l = append(l, target)
			}
			ids, labels = append(ids, m.IDs[first:end]), append(labels, l)
			sequences = append(sequences, [3]int{row, first, end})
		}
	}
	doc, err := json.Marshal(map[string]any{"input_ids": ids, "labels": labels})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "tokens.json")
	Write(t, path, string(doc))
	return path, sequences
}

// SmallConfig trains a small random llama on bytes.
func SmallConfig(t testing.TB) *runfile.Config {
	t.Helper()
	c := runfile.Defaults()
	c.Model, c.Tokenizer = WriteModel(t, nil), "bytes"
	c.Datasets = []data.Source{{Path: Corpus(t), Type: data.Text}}
	c.SequenceLen, c.BatchTokens, c.MaxSteps, c.WarmupSteps, c.LearningRate = 64, 256, 12, 2, 1e-2
	c.Precision = runfile.Precision{Compute: "f32", Master: "f32", Moments: "f32"}
	c.OutputDir = filepath.Join(t.TempDir(), "runs", "small")
	return &c
}
