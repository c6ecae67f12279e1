package train

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/source"
)

// endedTemplate ends turns with a token of the tokenizer in the tests below, which its base model knows nothing of.
const endedTemplate = `{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<|eos|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<assistant>' }}{% if quick %}{{ '!' }}{% endif %}{% endif %}`

// baseModel is the directory of a random model whose texts end with token 560, and that has no chat template.
func baseModel(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := writeModel(t, map[string]any{"vocab_size": 600, "eos_token_id": 560, "bos_token_id": 1, "pad_token_id": 2})
	spec, err := os.ReadFile(filepath.Join("..", "data", "tokenizer", "testdata", "smollm2.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tokenizer.json"), string(spec))
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"eos_token": "<|bos|>", "pad_token": "<|bos|>"}`)
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	return dir
}

// tree are the small files below a directory, by name with slashes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".safetensors" || d.Name() == "README.md" {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		doc, err := os.ReadFile(path)
		files[filepath.ToSlash(rel)] = string(doc)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// eosOf is eos_token_id of a configuration.
func eosOf(t *testing.T, doc string) any {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal([]byte(doc), &c); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return c["eos_token_id"]
}

func questions(t *testing.T, n int) data.Source {
	t.Helper()
	var rows strings.Builder
	for i := range n {
		rows.WriteString(`{"messages":[{"role":"user","content":"` + strings.Repeat("a", i) + `"},` +
			`{"role":"assistant","content":"` + strings.Repeat("b", i%3+1) + `"}]}` + "\n")
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	write(t, path, rows.String())
	return data.Source{Path: path, Type: data.Messages}
}

// handedConfig trains a base model on conversations with the template of a file.
func handedConfig(t *testing.T, model string) *runfile.Config {
	t.Helper()
	c := smallConfig(t)
	c.Model, c.Tokenizer, c.Datasets, c.MaxSteps = model, "auto", []data.Source{questions(t, 6)}, 2
	c.ChatTemplate = filepath.Join(t.TempDir(), "chatml.jinja")
	write(t, c.ChatTemplate, endedTemplate)
	return c
}

// A base model that is trained on conversations until it answers stops where its directory is all that is there, and
// says so before its first step.
func TestTrainedModelStopsByItsDirectoryAlone(t *testing.T) {
	c := handedConfig(t, baseModel(t, nil))
	c.MaxSteps, c.LearningRate, c.Save.AtEnd = 60, 1e-2, false
	env, said := newEnv(t), &strings.Builder{}
	env.Progress = said
	if _, err := Train(t.Context(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	const line = "trained texts end with <|eos|> (561), at which "
	if first, _, _ := strings.Cut(said.String(), "step  1/"); !strings.Contains(first, line) {
		t.Errorf("the first lines are %q, without %q", first, line)
	}
	card, err := os.ReadFile(filepath.Join(c.OutputDir, rundir.LastModel, "README.md"))
	if use := "The chat template is the one that the run used. Texts end with `<|eos|> (561)`."; err != nil ||
		!strings.Contains(string(card), use) {
		t.Errorf("the card is %s, %v, without %q", card, err, use)
	}
	alone := filepath.Join(t.TempDir(), "served")
	if err := os.Rename(filepath.Join(c.OutputDir, rundir.LastModel), alone); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{c.OutputDir, c.Model, c.ChatTemplate} {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
	talk := talkTo(t, generate.ChatOptions{Options: generate.Options{Model: alone, MaxTokens: 20, Compute: "f32"}})
	a, err := talk.Say(t.Context(), nil, "aa", nil)
	if err != nil || a.Finish != generate.FinishStop || a.Text != "bbb" {
		t.Errorf("%+v, %v", a, err)
	}
	src, err := source.OpenModel(t.Context(), newEnv(t), alone)
	if err != nil {
		t.Fatal(err)
	}
	if ends, err := src.ListedEnds(); err != nil || !slices.Equal(ends, []int32{560, 561}) {
		t.Errorf("transformers would end at %v, %v", ends, err)
	}
}

// The decisions of a run are in every directory that is written of it, without a second copy that says otherwise; also in
// the export of a checkpoint, once the files that the run file names are gone.
func TestDirectoriesAreOfTheRun(t *testing.T) {
	const stale = `{"eos_token": "<|bos|>", "chat_template": [{"name": "default", "template": "old"}, ` +
		`{"name": "tool_use", "template": "older"}], "pad_token": "<|bos|>"}`
	ofTokenizer := []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
	withTemplate := append([]string{"chat_template.jinja"}, ofTokenizer...)
	plain := []data.Source{{Path: corpus(t), Type: data.Text}}
	for name, c := range map[string]struct {
		files  map[string]string
		change func(c *runfile.Config)
		want   []string // files
		eos    any      // of generation_config.json
		has    map[string]string
	}{
		"a base model": {nil, func(*runfile.Config) {}, withTemplate, []any{560.0, 561.0},
			map[string]string{"chat_template.jinja": endedTemplate, "generation_config.json": `"bos_token_id": 1`,
				"tokenizer_config.json": `{"eos_token": "<|bos|>", "pad_token": "<|bos|>"}`}},
		"stale templates": {map[string]string{"tokenizer_config.json": stale, "chat_template.jinja": "old",
			"chat_template.json": `{"chat_template": "old"}`, "additional_chat_templates/rag.jinja": "old"},
			func(*runfile.Config) {}, withTemplate, []any{560.0, 561.0},
			map[string]string{"chat_template.jinja": endedTemplate,
				"tokenizer_config.json": `{"eos_token": "<|bos|>", "pad_token": "<|bos|>"}`}},
		"ends that are listed": {map[string]string{"generation_config.json": `{"eos_token_id": [561, 7], "temperature": 0.5}`},
			func(*runfile.Config) {}, withTemplate, []any{561.0, 7.0}, nil},
		"ends that are not": {map[string]string{"generation_config.json": `{"eos_token_id": 7, "temperature": 0.5}`},
			func(*runfile.Config) {}, withTemplate, []any{7.0, 561.0},
			map[string]string{"generation_config.json": `"temperature": 0.5`}},
		"no ends": {map[string]string{"generation_config.json": `{"eos_token_id": null}`}, func(*runfile.Config) {},
			withTemplate, 561.0, nil},
		"the model's own templates": {map[string]string{"chat_template.jinja": endedTemplate, "additional_chat_templates/rag.jinja": "x"},
			func(c *runfile.Config) { c.ChatTemplate = "auto" }, append([]string{"additional_chat_templates/rag.jinja"}, withTemplate...),
			[]any{560.0, 561.0}, map[string]string{"chat_template.jinja": endedTemplate, "additional_chat_templates/rag.jinja": "x"}},
		"two copies that differ": {map[string]string{"tokenizer_config.json": stale, "chat_template.jinja": endedTemplate},
			func(c *runfile.Config) { c.ChatTemplate = "auto" }, withTemplate, []any{560.0, 561.0},
			map[string]string{"chat_template.jinja": endedTemplate,
				"tokenizer_config.json": `{"eos_token": "<|bos|>", "pad_token": "<|bos|>"}`}},
		"variables": {map[string]string{"chat_template.jinja": endedTemplate},
			func(c *runfile.Config) { c.ChatTemplate, c.ChatTemplateKwargs = "auto", data.Kwargs{"quick": 1.0} },
			withTemplate, []any{560.0, 561.0}, map[string]string{"chat_template.jinja": "{%- if quick is not defined %}" +
				"{%- set quick = 1.0 %}{%- endif %}\n" + endedTemplate}},
		"text": {nil, func(c *runfile.Config) { c.Datasets, c.ChatTemplate = plain, "auto" },
			slices.DeleteFunc(slices.Clone(ofTokenizer), func(s string) bool { return s == source.GenerationName }), nil, nil},
		"bytes": {map[string]string{"chat_template.jinja": "old", "merges.txt": "", "special_tokens_map.json": "{}",
			"generation_config.json": `{"eos_token_id": 7}`},
			func(c *runfile.Config) { c.Tokenizer = "bytes" }, withTemplate, 256.0,
			map[string]string{"tokenizer.json": string(tokenizer.BytesFiles()["tokenizer.json"]), "config.json": `"eos_token_id": 256`,
				"chat_template.jinja": endedTemplate}},
		"bytes without a template": {map[string]string{"merges.txt": ""},
			func(c *runfile.Config) { c.Tokenizer, c.Datasets, c.ChatTemplate = "bytes", plain, "auto" }, ofTokenizer, 256.0, nil},
		"another tokenizer": {map[string]string{"merges.txt": "", "generation_config.json": `{"eos_token_id": 7}`},
			func(c *runfile.Config) {
				c.Tokenizer = baseModel(t, map[string]string{"special_tokens_map.json": "{}", "chat_template.jinja": "old"})
			}, append([]string{"special_tokens_map.json"}, withTemplate...), []any{560.0, 561.0},
			map[string]string{"chat_template.jinja": endedTemplate, "config.json": `"pad_token_id": null`}},
		"a tokenizer's file": {nil, func(c *runfile.Config) {
			dir := baseModel(t, map[string]string{"generation_config.json": `{"eos_token_id": [7, 561], "top_k": 9}`})
			c.Tokenizer = filepath.Join(dir, "mine.json")
			if err := os.Rename(filepath.Join(dir, "tokenizer.json"), c.Tokenizer); err != nil {
				t.Fatal(err)
			}
		}, withTemplate, []any{7.0, 561.0, 560.0}, map[string]string{"generation_config.json": `"top_k": 9`}},
	} {
		t.Run(name, func(t *testing.T) {
			run := handedConfig(t, baseModel(t, c.files))
			run.ValSize, run.Eval.Every, run.Save.Best = 2, 1, true
			c.change(run)
			if _, err := Train(t.Context(), run, Options{Env: newEnv(t)}); err != nil {
				t.Fatal(err)
			}
			written := tree(t, filepath.Join(run.OutputDir, rundir.LastModel))
			var names []string
			for name := range written {
				names = append(names, name)
			}
			slices.Sort(names)
			slices.Sort(c.want)
			if !slices.Equal(names, c.want) {
				t.Errorf("files %v, want %v", names, c.want)
			}
			if doc, ok := written[source.GenerationName]; ok && !reflect.DeepEqual(eosOf(t, doc), c.eos) {
				t.Errorf("%s, want ends %v", doc, c.eos)
			}
			for name, text := range c.has {
				if !strings.Contains(written[name], text) {
					t.Errorf("%s is %q, without %q", name, written[name], text)
				}
			}
			if got := tree(t, filepath.Join(run.OutputDir, rundir.BestModel)); !reflect.DeepEqual(got, written) {
				t.Errorf("the best model has other files: %v, want %v", got, written)
			}
			if _, err := os.Stat(run.ChatTemplate); err == nil {
				write(t, run.ChatTemplate, "another template by now")
			}
			out := filepath.Join(t.TempDir(), "out")
			last := filepath.Join(run.OutputDir, rundir.CheckpointsName, "step-000002")
			if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: run.Model, Checkpoint: last,
				Dir: out}); err != nil {
				t.Fatal(err)
			}
			got := tree(t, out)
			got["config.json"] = strings.Replace(got["config.json"], "bfloat16", "float32", 1)
			if !reflect.DeepEqual(got, written) {
				t.Errorf("the checkpoint's export has other files: %v, want %v", got, written)
			}
			// The directory is read as the run was, by itself and by way of the run.
			for _, name := range []string{run.OutputDir, out} {
				src, err := source.OpenTrained(t.Context(), newEnv(t), name)
				if err != nil {
					t.Fatal(err)
				}
				settings, err := src.Settings(newEnv(t), "auto", "auto", nil)
				if err != nil {
					t.Fatal(err)
				}
				r, err := src.OpenReader(settings)
				if err != nil {
					t.Fatal(err)
				}
				chat, ok := r.Renderer.(*data.Chat)
				if _, wants := c.has["chat_template.jinja"]; !ok {
					if wants {
						t.Errorf("%s has no template", name)
					}
					continue
				}
				text, err := chat.Prompt(t.Context(), []data.Message{{Role: data.User, Content: "q"}})
				want := "<user>q<|eos|>\n<assistant>"
				if run.ChatTemplateKwargs != nil {
					want += "!"
				}
				if err != nil || text != want {
					t.Errorf("%s asks with %q, %v, want %q", name, text, err, want)
				}
			}
			again := filepath.Join(t.TempDir(), "again") // a directory keeps them
			if _, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: out, Dir: again}); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, again); got["config.json"] == "" || got["chat_template.jinja"] != written["chat_template.jinja"] ||
				got[source.GenerationName] != written[source.GenerationName] || len(got) != len(written) {
				t.Errorf("exported again it has %v", got)
			}
		})
	}
}

// A run with other variables of the template does not continue, and the refusal names the key; a variable that is not
// read ends the run before it begins, and so does one without a template.
func TestVariablesAreOfTheRun(t *testing.T) {
	c := handedConfig(t, baseModel(t, nil))
	c.ChatTemplateKwargs = data.Kwargs{"quick": true}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	longer := *c
	longer.MaxSteps, longer.ResumeWith = 3, []string{"max_steps"}
	for name, change := range map[string]func(c *runfile.Config){
		"chat_template_kwargs was {\"quick\": true}, is now {\"quick\": 1}": func(c *runfile.Config) { c.ChatTemplateKwargs = data.Kwargs{"quick": 1} },
		"chat_template_kwargs was {\"quick\": true}, is now not set":        func(c *runfile.Config) { c.ChatTemplateKwargs = nil },
		"never reads the variable quik, which would change nothing: did you mean quick?": func(c *runfile.Config) {
			c.ChatTemplateKwargs = data.Kwargs{"quik": true}
		},
		"bos_token has its value from": func(c *runfile.Config) { c.ChatTemplateKwargs = data.Kwargs{"bos_token": "x"} },
		"has no chat template, so nothing would read them": func(c *runfile.Config) {
			c.ChatTemplate, c.Datasets = "auto", []data.Source{{Path: corpus(t), Type: data.Text}}
		},
	} {
		run := longer
		change(&run)
		if _, err := Train(t.Context(), &run, Options{Env: newEnv(t)}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
	if _, err := Train(t.Context(), &longer, Options{Env: newEnv(t)}); err != nil {
		t.Errorf("with the same variables: %v", err)
	}
	// The model has them as defaults, and who talks to it may have others.
	model := filepath.Join(c.OutputDir, rundir.LastModel)
	for kwargs, want := range map[string]string{"": "<assistant>!", `{"quick": false}`: "<assistant>"} {
		var given data.Kwargs
		if kwargs != "" {
			var err error
			if given, err = data.ParseKwargs(kwargs); err != nil {
				t.Fatal(err)
			}
		}
		text, err := chatOf(t, model, given).Prompt(t.Context(), []data.Message{{Role: data.User, Content: "q"}})
		if err != nil || text != "<user>q<|eos|>\n"+want {
			t.Errorf("%s: %q, %v, want %q", kwargs, text, err, want)
		}
	}
	o := generate.ChatOptions{Options: generate.Options{Model: model, MaxTokens: 2}, Kwargs: data.Kwargs{"slow": true}}
	if _, err := generate.OpenConversation(t.Context(), newEnv(t), o); err == nil ||
		!strings.Contains(err.Error(), "never reads the variable slow") {
		t.Errorf("a variable that is not read: %v", err)
	}
}

// chatOf is the chat template of a model that a run has written, with variables.
func chatOf(t *testing.T, model string, kwargs data.Kwargs) *data.Chat {
	t.Helper()
	env := newEnv(t)
	src, err := source.OpenTrained(t.Context(), env, model)
	if err != nil {
		t.Fatal(err)
	}
	c, err := src.Settings(env, "auto", "auto", kwargs)
	if err != nil {
		t.Fatal(err)
	}
	r, err := src.OpenReader(c)
	if err != nil {
		t.Fatal(err)
	}
	return r.Renderer.(*data.Chat)
}

func talkTo(t *testing.T, o generate.ChatOptions) *generate.Conversation {
	t.Helper()
	c, err := generate.OpenConversation(t.Context(), newEnv(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
