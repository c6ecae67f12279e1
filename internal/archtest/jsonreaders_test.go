package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// jsonReaders are the files that decode JSON by encoding/json itself. Each of them reads what this program has written
// or made, or parts of a document that was counted before, or bounds its values in a way of its own. Others use
// budget.Unmarshal, which counts values first.
var jsonReaders = []string{
	"bench", "benchmarks", "checkpoint/hosts.go", "checkpoint/manifest.go", "cmd", "data/cache.go", "data/kwargs.go", "data/parquet", "data/prompts.go",
	"data/registry.go", "data/rows.go", "data/template", "data/tokenizer", "demo", "device/cuda", "examples", "gguf/pre.go", "gguf/vocab.go", "hf/hub",
	"hf/sidecars.go", "hf/strictjson.go", "internal/budget", "model/modeltest", "plan", "probe", "report",
	"runfile/mapping.go", "trace", "train/hosts",
	"train/open.go", "train/resume.go", "train/rl/server/servertest",
	"train/rundir", "train/samples.go", "train/session/algorithms.go", "train/source", "train/traintest",
	"train/verbs/gradients.go", "workshop",
}

// TestJSONReaders refuses a new file that decodes JSON without a bound of its values.
func TestJSONReaders(t *testing.T) {
	decodes := regexp.MustCompile(`\bjson\.(Unmarshal|NewDecoder)\(`)
	root := filepath.Join("..", "..")
	seen := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != root {
			return cmpErr(err)
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if err != nil || !decodes.Match(text) {
			return err
		}
		seen++
		if !slices.ContainsFunc(jsonReaders, func(known string) bool { return within(rel, known) }) {
			t.Errorf("%s decodes JSON by encoding/json: use budget.Unmarshal, or say in jsonReaders why its values are bounded", rel)
		}
		return nil
	})
	if err != nil || seen < 20 {
		t.Errorf("%d files, error %v", seen, err)
	}
}

// cmpErr is the error of a walk, or that a directory is left out.
func cmpErr(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}
