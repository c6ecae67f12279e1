package hf

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/tensor"
)

func parse(t *testing.T, doc string) *Config {
	t.Helper()
	c, err := ParseConfig("m/config.json", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfigReader(t *testing.T) {
	r := parse(t, `{"n": 576, "eps": 1e-5, "tied": true, "act": "silu", "archs": ["A", "B"], "none": null, "transformers_version": "4.0",
		"rope_scaling": {"a": 1}, "z": -3}`).Reader()
	if n := r.Size("n"); n != 576 {
		t.Error(n)
	}
	if x := r.Float("eps"); x != 1e-5 {
		t.Error(x)
	}
	if !r.BoolOr("tied", false) || r.BoolOr("none", true) != true || r.SizeOr("none", 7) != 7 || r.IntOr("z", 0) != -3 {
		t.Error("values or defaults are wrong")
	}
	if s := r.OneOf("act", "gelu", "silu", "swish"); s != "silu" {
		t.Error(s)
	}
	if s := r.StringsOr("archs", nil); len(s) != 2 || s[1] != "B" {
		t.Error(s)
	}
	nested, ok := r.Object("rope_scaling")
	if !ok {
		t.Fatal("no nested object")
	}
	r.Require("absent", 0.0)
	r.Require("tied", true)
	r.Require("n", 576)
	wantOneLine(t, r.Finish(), "m/config.json", `"rope_scaling.a"`, "not supported")
	nested.Ignore("a")
	if err := r.Finish(); err != nil {
		t.Error(err)
	}
}

// A key is read by the name that the file has for it, and errors name that; the other name is then unknown.
func TestConfigCalled(t *testing.T) {
	called := map[string]string{"hidden_size": "n_embd", "layers": "n_layer"}
	r := parse(t, `{"n_embd": 7, "layers": 2, "heads": 3}`).Reader()
	r.Called(called)
	if !r.Has("hidden_size") || r.Size("hidden_size") != 7 || r.Size("layers") != 2 {
		t.Error(r.Err())
	}
	r.Ignore("heads")
	if err := r.Finish(); err != nil {
		t.Error(err)
	}
	for doc, want := range map[string]string{`{}`: `"n_embd" is missing`, `{"n_embd": 0}`: `"n_embd" is 0`,
		`{"hidden_size": "x"}`:            `"hidden_size" is "x"`,
		`{"hidden_size": 1, "n_embd": 2}`: `"n_embd" is not supported`} {
		r := parse(t, doc).Reader()
		r.Called(called)
		r.Size("hidden_size")
		wantOneLine(t, r.Finish(), want)
	}
}

// defaultsOf parses the defaults of one model_type.
func defaultsOf(t *testing.T, of string) *Defaults {
	t.Helper()
	all, err := ParseDefaults([]byte(`{"x": ` + of + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return all["x"]
}

// What defaults give a nested object is not asked of the file, and its reader stays the same one. A null is an absent key,
// unless the defaults say that it means none.
func TestConfigDefaults(t *testing.T) {
	defaults := defaultsOf(t, `{"absent": {"a": 7, "b": 2, "null": 5, "none": 6, "yes": true, "no": true,
		"inner": {"x": 8, "unread": 9}}, "null": ["none", "no"]}`)
	r := parse(t, `{"text_config": {"a": 1, "null": null, "none": null, "no": null, "z": 3}}`).Reader()
	nested := r.Config("text_config")
	nested.Default(defaults)
	a, b, null, none := nested.Size("a"), nested.Size("b"), nested.Size("null"), nested.SizeOr("none", 4)
	if a != 1 || b != 2 || null != 5 || none != 4 || !nested.Bool("yes") || nested.Bool("no") {
		t.Error(a, b, null, none)
	}
	if inner, ok := nested.Object("inner"); !ok || inner.Size("x") != 8 || inner.SizeOr("y", 3) != 3 {
		t.Error("the object of the defaults is not read")
	}
	if nested.Has("b") || !nested.HasValue("b") || nested.HasValue("none") || !nested.HasValue("null") {
		t.Error("a key that is absent has a value, and is not in the file")
	}
	if again, ok := r.Object("text_config"); !ok || again != nested {
		t.Error("the object has a second reader")
	}
	wantOneLine(t, r.Finish(), `"text_config.z" is not supported`)

	for doc, want := range map[string]string{`{"none": null}`: `"none" is null: a positive`,
		`{"no": null, "none": 3}`: `"no" is null: supported is true`} {
		r := parse(t, doc).Reader()
		r.Default(defaults)
		r.Size("none")
		r.Require("no", true)
		wantOneLine(t, r.Finish(), want)
	}
	r = parse(t, `{}`).Reader()
	r.Default(defaults.Without("a"))
	r.Fail("b", "it is even")
	wantOneLine(t, r.Finish(), `"b" is missing, which means 2: it is even`)
	r = parse(t, `{}`).Reader()
	r.Default(defaults.Without("a"))
	r.Size("a")
	wantOneLine(t, r.Finish(), `"a" is missing: `)

	for _, doc := range []string{`{}`, `{"text_config": null}`, `{"text_config": 3}`} {
		r := parse(t, doc).Reader()
		nested := r.Config("text_config")
		nested.Default(defaults)
		nested.Size("a")
		wantOneLine(t, r.Finish(), `"text_config" is `, "an object is expected")
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		doc   string
		read  func(r *ConfigReader)
		words []string
	}{
		"missing":            {`{}`, func(r *ConfigReader) { r.Size("n") }, []string{`"n" is missing`}},
		"null":               {`{"n": null}`, func(r *ConfigReader) { r.Size("n") }, []string{`"n" is null`}},
		"zero":               {`{"n": 0}`, func(r *ConfigReader) { r.Size("n") }, []string{`"n" is 0: a positive whole number`}},
		"negative":           {`{"n": -1}`, func(r *ConfigReader) { r.SizeOr("n", 1) }, []string{`"n" is -1`}},
		"fraction":           {`{"n": 1.5}`, func(r *ConfigReader) { r.Size("n") }, []string{`"n" is 1.5`, "whole"}},
		"huge":               {`{"n": 2147483648}`, func(r *ConfigReader) { r.Size("n") }, []string{`"n"`, "at most"}},
		"very huge":          {`{"n": 1e400}`, func(r *ConfigReader) { r.Size("n") }, []string{`"n" is 1e400`}},
		"float range":        {`{"x": 1e400}`, func(r *ConfigReader) { r.Float("x") }, []string{`"x" is 1e400`, "range"}},
		"float string":       {`{"x": "1"}`, func(r *ConfigReader) { r.Float("x") }, []string{`"x" is "1"`, "number"}},
		"float missing":      {`{}`, func(r *ConfigReader) { r.Float("x") }, []string{`"x" is missing`}},
		"bool":               {`{"b": 1}`, func(r *ConfigReader) { r.BoolOr("b", true) }, []string{`"b" is 1`, "true or false"}},
		"string":             {`{"s": [1,2]}`, func(r *ConfigReader) { r.StringOr("s", "") }, []string{`"s" is [1, 2]`, "string"}},
		"strings":            {`{"s": ["a",2]}`, func(r *ConfigReader) { r.StringsOr("s", nil) }, []string{`"s"`, "list of strings"}},
		"one of":             {`{"hidden_act": "gelu"}`, func(r *ConfigReader) { r.OneOf("hidden_act", "silu", "silu") }, []string{`"hidden_act" is "gelu": supported is silu`}},
		"require":            {`{"attention_dropout": 0.1}`, func(r *ConfigReader) { r.Require("attention_dropout", 0) }, []string{`"attention_dropout" is 0.1: supported is 0`}},
		"require bool":       {`{"b": "x"}`, func(r *ConfigReader) { r.Require("b", false) }, []string{`"b" is "x": supported is false`}},
		"object":             {`{"o": 1}`, func(r *ConfigReader) { r.Object("o") }, []string{`"o" is 1`, "object"}},
		"unread":             {`{"model_type": "x", "quantization_config": {"bits": 4}}`, func(r *ConfigReader) {}, []string{`"quantization_config"`, "not supported"}},
		"first sticks":       {`{"a": 0, "b": 0}`, func(r *ConfigReader) { r.Size("a"); r.Size("b"); r.Size("c") }, []string{`"a" is 0`}},
		"newline in a value": {`{"hidden_act": "a\nb"}`, func(r *ConfigReader) { r.OneOf("hidden_act", "silu", "silu") }, []string{`"a\nb"`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := parse(t, c.doc).Reader()
			c.read(r)
			wantOneLine(t, r.Finish(), append(c.words, "m/config.json")...)
		})
	}
	for doc, word := range map[string]string{
		``: "too early", `[]`: "list", `{"a":NaN}`: "not JSON", `{"a":Infinity}`: "not JSON", `{"a":1,"a":2}`: "twice",
		`{"a":{"b":1,"b":2}}`: "twice", `{} {}`: "text after", "{\"a\":\"\xff\"}": "UTF-8", `{"a":1`: "too early", `{"a" 1}`: "not JSON",
	} {
		_, err := ParseConfig("config.json", []byte(doc))
		wantOneLine(t, err, "config.json", word)
	}
	_, err := ReadConfig(t.TempDir())
	wantOneLine(t, err, "config.json is missing")
}

func TestWithDType(t *testing.T) {
	for doc, want := range map[string]string{
		`{"a": 1, "torch_dtype": "float32", "b": [2]}`: `{"a": 1, "torch_dtype": "bfloat16", "b": [2]}`,
		`{"dtype" : null}`: `{"dtype" : "bfloat16"}`,
		`{"torch_dtype":"x\"y\\","dtype":"float16" }` +
			"\n": `{"torch_dtype":"bfloat16","dtype":"bfloat16" }` + "\n",
		` {"a": {"dtype": "int8"}}`:                                                " {\n  \"torch_dtype\": \"bfloat16\",\"a\": {\"dtype\": \"int8\"}}",
		`{"text_config": {"dtype": "float32"}, "dtype": "float16"}`:                `{"text_config": {"dtype": "bfloat16"}, "dtype": "bfloat16"}`,
		`{"text_config": {"dtype": "float32"}}`:                                    `{"text_config": {"dtype": "bfloat16"}}`,
		`{"a": 1, "quantization_config": {"x": "}"}, "dtype": "float16"}`:          `{"a": 1, "dtype": "bfloat16"}`,
		`{ "quantization_config" : {"quant_method": "mxfp4"} , "dtype":"float16"}`: `{ "dtype":"bfloat16"}`,
		`{"quantization_config": [1]}`:                                             "{\n  \"torch_dtype\": \"bfloat16\"}",
		`{"dtype": "float32", "quantization_config": null}`:                        `{"dtype": "bfloat16", "quantization_config": null}`,
		`{}`: "{\n  \"torch_dtype\": \"bfloat16\"}",
	} {
		got, err := parse(t, doc).WithDType(tensor.BF16)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", doc, got, err, want)
		}
	}
	_, err := parse(t, `{"dtype": 3}`).WithDType(tensor.BF16)
	wantOneLine(t, err, `"dtype" is 3`)
	_, err = parse(t, `{}`).WithDType(tensor.I64)
	wantOneLine(t, err, "i64")
	_, err = parse(t, `{"text_config": {"dtype": 3}}`).WithDType(tensor.BF16)
	wantOneLine(t, err, `"text_config.dtype" is 3`)
	for _, doc := range []string{`{"torch_dtype": "float16"}`, `{"text_config": {"dtype": "float16"}}`,
		`{"text_config": {"dtype": "float32"}, "dtype": "float16"}`} {
		if d := parse(t, doc).DType(); d != tensor.F16 {
			t.Error(doc, d)
		}
	}
}

// Weights in MXFP4 are described as in the published models, once.
func TestWithMXFP4(t *testing.T) {
	for _, doc := range []string{`{}`, `{"a": 1}`, `{"quantization_config": null, "dtype": "float32"}`,
		`{"dtype": "float32", "quantization_config": {"quant_method": "gptq"}}`, ` {"quantization_config": {}}`} {
		text, err := parse(t, doc).WithMXFP4()
		if err != nil {
			t.Fatal(doc, err)
		}
		c := parse(t, string(text))
		q, ok := c.Reader().Object("quantization_config")
		if !ok || c.DType() != tensor.BF16 || q.StringOr("quant_method", "") != "mxfp4" ||
			strings.Join(q.StringsOr("modules_to_not_convert", nil),
				" ") != "model.layers.*.self_attn model.layers.*.mlp.router model.embed_tokens lm_head" {
			t.Errorf("%s became %s", doc, text)
		}
		if plain, err := c.WithDType(tensor.BF16); err != nil || strings.Contains(string(plain), "quant") {
			t.Errorf("%s became %s, %v", text, plain, err)
		}
	}
	_, err := parse(t, `{"dtype": 3}`).WithMXFP4()
	wantOneLine(t, err, `"dtype" is 3`)
}

// A family accepts the methods that it names; all others are refused as before.
func TestQuantized(t *testing.T) {
	for doc, want := range map[string]string{
		`{}`: "",
		`{"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["x"], "new": 1}}`: "",
		`{"quantization_config": {"quant_method": "gptq"}}`:                                             `the weights are quantized ("gptq"), and only those of the original model`,
		`{"quantization_config": {"quant_method": 4}}`:                                                  "the weights are quantized, and only",
		`{"quantization_config": {}}`:                                                                   "the weights are quantized, and only",
		`{"quantization_config": "mxfp4"}`:                                                              "the weights are quantized, and only",
	} {
		r := parse(t, doc).Reader()
		r.Quantized("mxfp4")
		if err := r.Finish(); want != "" {
			wantOneLine(t, err, want)
		} else if err != nil {
			t.Error(err)
		}
	}
	r := parse(t, `{"quantization_config": {"quant_method": "mxfp4"}}`).Reader()
	wantOneLine(t, r.Finish(), `quantized ("mxfp4")`)
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"torch_dtype": "bfloat16", "hidden_size": 576, "rope_scaling": {"type": "linear", "factor": 2}}`))
	f.Add([]byte(`{"quantization_config":{"quant_method":"mxfp4"},"a":{"dtype":"float16"}}`))
	f.Add([]byte(`{"dtype":"a\\\"","rope_parameters":{"rope_type":"llama3"}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		c, err := ParseConfig("config.json", doc)
		if err == nil {
			r := c.Reader()
			if n := r.SizeOr("hidden_size", 1); r.Err() == nil && (n < 1 || n > maxSize) {
				t.Errorf("size %d", n)
			}
			err = r.Finish()
			if changed, werr := c.WithMXFP4(); werr == nil {
				c, perr := ParseConfig("config.json", changed)
				if perr != nil || c.DType() != tensor.BF16 {
					t.Errorf("%s became %s: %v", doc, changed, perr)
				} else if r := c.Reader(); r.quantization() != ` ("mxfp4")` {
					t.Errorf("%s became %s", doc, changed)
				}
			}
			if changed, werr := c.WithDType(tensor.BF16); werr == nil {
				c, perr := ParseConfig("config.json", changed)
				if perr != nil || c.DType() != tensor.BF16 {
					t.Errorf("%s became %s: %v", doc, changed, perr)
				}
			}
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("more than one line: %q", err)
		}
	})
}
