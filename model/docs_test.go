package model_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// shared are the families that have the golden files of another one, by its variant: the same decoder under another
// name, or the text of a model as a model of its own.
var shared = map[string]string{"ministral3": "mistral3", "gemma4_unified_text": "gemma4_unified",
	"kimi_k2": "deepseek_v3-direct"}

// Such a family has the same blocks, and the same tensors under names without what says that they are the text's.
func TestSharedGoldenFiles(t *testing.T) {
	for family, variant := range shared {
		whole := mustBuild(t, variant, nil)
		var keys map[string]json.RawMessage
		check(t, json.Unmarshal(config(t, variant, nil), &keys))
		inner := keys["text_config"]
		if inner == nil {
			inner = config(t, variant, nil)
		}
		var decoder map[string]any
		check(t, json.Unmarshal(inner, &decoder))
		decoder["model_type"] = family
		if tied, ok := keys["tie_word_embeddings"]; ok {
			decoder["tie_word_embeddings"] = tied
		}
		doc, err := json.Marshal(decoder)
		check(t, err)
		c, err := hf.ParseConfig("config.json", doc)
		check(t, err)
		text, err := model.New(c)
		check(t, err)
		if diff := cmp.Diff(whole.Blocks, text.Blocks, cmp.AllowUnexported(nn.RopeFrequencies{})); diff != "" {
			t.Errorf("%s: blocks (-%s +%s):\n%s", family, variant, family, diff)
		}
		scales := func(m *model.Model) [2]float32 {
			return [2]float32{m.EmbedScale(tensor.F32), m.EmbedScale(tensor.BF16)}
		}
		if text.Head != whole.Head || text.Tied != whole.Tied || text.MaxPositions != whole.MaxPositions ||
			text.InitStd != whole.InitStd || scales(text) != scales(whole) {
			t.Errorf("%s: %+v, %+v, not as in %s %+v, %+v", family, text, text.Head, variant, whole, whole.Head)
		}
		for i, of := range text.Tensors() {
			want := whole.Tensors()[i]
			want.Name = strings.Replace(want.Name, "language_model.", "", 1)
			if diff := cmp.Diff(want, of); diff != "" {
				t.Errorf("%s: (-%s +%s)\n%s", family, variant, family, diff)
			}
		}
	}
}

// docs/models.md has a row for each family, in the order of the list, with all of its golden files and how many
// thousands of parameters each has; and the tolerances that tests of golden files have.
func TestModelsPage(t *testing.T) {
	variants := map[string][]string{}
	for _, name := range modeltest.Variants(t) {
		text, err := os.ReadFile(filepath.Join(modeltest.Load(t, name).Dir, "config.json"))
		check(t, err)
		var c struct {
			ModelType string `json:"model_type"`
		}
		check(t, json.Unmarshal(text, &c))
		m, err := model.Read(modeltest.Load(t, name).Dir)
		check(t, err)
		params, _ := m.Params()
		variants[c.ModelType] = append(variants[c.ModelType], fmt.Sprintf("%s %d", name, (params+500)/1000))
	}
	for family, variant := range shared {
		variants[family] = append(variants[family], "those of "+variant)
	}
	var want, got [][]string
	for _, family := range model.Families() {
		want = append(want, []string{family, strings.Join(variants[family], ", ")})
	}
	page, err := os.ReadFile(filepath.FromSlash("../docs/models.md"))
	check(t, err)
	tolerances := map[string]float64{
		"the loss and every logit":                      modeltest.WithinLogits,
		"the gradient of every tensor":                  modeltest.WithinGradients,
		"the losses of 20 steps of AdamW with clipping": modeltest.WithinSteps,
		"a loss of bf16 compute":                        modeltest.WithinBF16,
	}
	said := map[string]float64{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		name, isRow := strings.CutPrefix(strings.TrimSpace(cells[0]), "`")
		if name = strings.TrimSuffix(name, "`"); isRow && len(cells) == 4 && name != "model_type" {
			got = append(got, []string{name, strings.TrimSpace(cells[3])})
		}
		if compared := strings.TrimSpace(cells[0]); tolerances[compared] != 0 && len(cells) == 3 {
			word, _, _ := strings.Cut(strings.TrimSpace(cells[2]), " ")
			number, isPercent := strings.CutSuffix(word, "%")
			said[compared], err = strconv.ParseFloat(number, 64)
			check(t, err)
			if isPercent {
				said[compared] /= 100
			}
		}
	}
	if diff := cmp.Diff(tolerances, said); diff != "" {
		t.Errorf("docs/models.md has other tolerances than tests (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/models.md differs from the list of families and their golden files (-want +got):\n%s", diff)
	}
}
