package model_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
)

// docs/models.md has a row for each family, in the order of the list, with all of its golden files.
func TestModelsPage(t *testing.T) {
	variants := map[string][]string{}
	for _, name := range modeltest.Variants(t) {
		text, err := os.ReadFile(filepath.Join(modeltest.Load(t, name).Dir, "config.json"))
		check(t, err)
		var c struct {
			ModelType string `json:"model_type"`
		}
		check(t, json.Unmarshal(text, &c))
		variants[c.ModelType] = append(variants[c.ModelType], name)
	}
	var want, got [][]string
	for _, family := range model.Families() {
		want = append(want, []string{family, strings.Join(variants[family], ", ")})
	}
	page, err := os.ReadFile(filepath.FromSlash("../docs/models.md"))
	check(t, err)
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		name, isRow := strings.CutPrefix(strings.TrimSpace(cells[0]), "`")
		if name = strings.TrimSuffix(name, "`"); isRow && len(cells) == 4 && name != "model_type" {
			got = append(got, []string{name, strings.TrimSpace(cells[3])})
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/models.md differs from the list of families and their golden files (-want +got):\n%s", diff)
	}
}
