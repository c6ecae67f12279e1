package convert

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

// nameTable is models.yaml.
type nameTable struct {
	Kinds     map[string]string `yaml:"kinds"`
	Families  []familyNames     `yaml:"families"`
	Quantized []string          `yaml:"quantized"`
	Adapters  []string          `yaml:"adapters"`

	quantized, adapters *regexp.Regexp
}

// familyNames are the names that models of a model_type have.
type familyNames struct {
	Type  string   `yaml:"type"` // empty: there is no model_type that could be trained
	Kind  string   `yaml:"kind"`
	Names []string `yaml:"names"`

	pattern *regexp.Regexp
}

//go:embed models.yaml
var modelsSource []byte

// names is the table, with its patterns compiled.
var names = sync.OnceValue(func() *nameTable {
	t := new(nameTable)
	if err := yaml.UnmarshalWithOptions(modelsSource, t, yaml.Strict()); err != nil {
		panic(err) // the file above is wrong
	}
	for i := range t.Families {
		t.Families[i].pattern = regexp.MustCompile(`(^|[^a-z0-9])(` + strings.Join(t.Families[i].Names, "|") + `)`)
	}
	word := func(words []string) *regexp.Regexp {
		return regexp.MustCompile(`(^|[^a-z0-9])(` + strings.Join(words, "|") + `)($|[^a-z0-9])`)
	}
	t.quantized, t.adapters = word(t.Quantized), word(t.Adapters)
	return t
})

// named finds the row of a model's name: that of a hub id without its owner, or the last part of a path that tells.
func named(model string) (familyNames, bool) {
	parts := strings.Split(strings.Trim(plainName(model), "/"), "/")
	if len(parts) == 2 && !strings.HasPrefix(model, "/") && !strings.HasPrefix(model, ".") {
		parts = parts[1:] // an owner's name says nothing: mistral-community/pixtral-12b
	}
	for _, part := range slices.Backward(parts) {
		for _, row := range names().Families {
			if row.pattern.MatchString(part) {
				return row, true
			}
		}
	}
	return familyNames{}, false
}

// plainName is a name as the patterns have it.
func plainName(model string) string {
	name, _, _ := strings.Cut(strings.ToLower(model), "@")
	return strings.ReplaceAll(name, "_", "-")
}

// classEnd ends the names of classes of transformers, such as MistralForCausalLM.
var classEnd = regexp.MustCompile(
	`(ForCausalLM|ForConditionalGeneration|ForImageTextToText|LMHeadModel|TextConfig|Config)$`)

// typeOfClass is the model_type of a class of transformers, or of a model_type itself; empty if it says nothing.
func typeOfClass(class string) string {
	if strings.HasPrefix(class, "Auto") || !plain.MatchString(class) {
		return ""
	}
	flat := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	stem := flat(classEnd.ReplaceAllString(class, ""))
	for _, row := range names().Families {
		if row.Type != "" && flat(row.Type) == stem {
			return row.Type
		}
	}
	return ""
}

// describe says what a model is, for a refusal: "a model of type qwen2_moe, with experts".
func (f familyNames) describe() string {
	kind := names().Kinds[f.Kind]
	switch {
	case f.Type == "":
		return "a model " + kind
	case kind == "":
		return "a model of type " + f.Type
	}
	return "a model of type " + f.Type + ", " + kind
}
