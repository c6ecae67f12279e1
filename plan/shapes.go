package plan

import (
	"embed"
	"strings"
)

// The files hold what shapes need of the configurations that were published with the models on huggingface.co:
// meta-llama/Meta-Llama-3-8B and -70B; meta-llama/Llama-3.2-1B and -3B; Qwen/Qwen2.5-1.5B, -7B, -14B, -32B and -72B;
// Qwen/Qwen2.5-7B-Instruct-1M; Qwen/Qwen3-4B, -8B, -14B and -32B; mistral-7b is mistralai/Mistral-7B-v0.3;
// smollm2-135m is HuggingFaceTB/SmolLM2-135M; gemma-3-12b and -27b are google/gemma-3-12b-it and -27b-it; gemma-4-e2b,
// -e4b, -12b, -26b-a4b and -31b are google/gemma-4-E2B-it, -E4B-it, -12B-it, -26B-A4B-it and -31B-it, as far as public
// code that loads them says; glm-4.5-air is zai-org/GLM-4.5-Air; phi-4 is microsoft/phi-4; olmo-3-32b is
// allenai/Olmo-3-1125-32B; qwen3.5-* are Qwen/Qwen3.5-4B, -27B, -35B-A3B and -122B-A10B, as far as public copies of
// their configurations and code that loads them agree; deepseek-v3 is deepseek-ai/DeepSeek-V3, without its layer of
// multi-token prediction, which is not trained; kimi-k2 is moonshotai/Kimi-K2-Base; dense-123b is
// mistralai/Mistral-Large-Instruct-2407. dense-180-layers is not a published model: a deep stack of blocks as wide as
// those of 70B models, to see what depth does.
//
//go:embed shapes/*.json
var shapeFiles embed.FS

// Shapes are the names that Shape knows.
func Shapes() []string {
	files, err := shapeFiles.ReadDir("shapes")
	if err != nil {
		panic(err) // it was embedded
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	return names
}

// Shape is the config.json of a named shape, or an error that lists those there are.
func Shape(name string) ([]byte, error) {
	for _, known := range Shapes() {
		if known == name {
			return shapeFiles.ReadFile("shapes/" + name + ".json")
		}
	}
	return nil, unknownName("shape", name, Shapes())
}
