package hf

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/terminal"
)

// maxSize bounds every size in a config.json, so that products of two cannot overflow int64.
const maxSize = math.MaxInt32

// ConfigReader reads the keys of a JSON object and remembers which ones were read. Errors stick: after the first one
// the accessors return zero values, and Err and Finish return it. A key that the file leaves out has the value of the
// reader's Defaults, and one whose value is null has it, too, unless they say that it then has none. What stands for a key
// without any value is an argument of accessors (SizeOr) or the zero value (Bool), or the key must have one (Size).
//
// A model family reads the keys that it understands, calls Require for features that it has in one form only, and then
// Finish, which refuses every key that was not read: no feature is ignored by accident.
type ConfigReader struct {
	path     string // of the file
	prefix   string // "rope_scaling." inside that object
	config   bool   // the object is a model's configuration, and may have inert keys
	obj      *object
	defaults Defaults
	isOurs   bool              // the object is one of Defaults, not of the file
	called   map[string]string // by key, what files may call it instead
	read     map[string]bool
	err      *error // shared with the readers of nested objects
	children []*ConfigReader
}

// inertKeys have no influence on the mathematics of a decoder, or only say again what the tensors say.
var inertKeys = []string{
	"_name_or_path", "_commit_hash", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
	"architectures", "model_type", "auto_map", "transformers_version", "transformers.js_config", "torch_dtype", "dtype",
	"torchscript",
	"use_cache", "return_dict", "output_hidden_states", "output_attentions", "initializer_range", "tokenizer_class",
	"bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
	"decoder_start_token_id", "prefix", "task_specific_params", "problem_type", "finetuning_task", "id2label", "label2id",
	"max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
	"temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
	"encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
	"forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
	"suppress_tokens", "begin_suppress_tokens", "unsloth_version", "unsloth_fixed",
}

// Has reports whether the key is there and not null. It does not count as reading it.
func (r *ConfigReader) Has(key string) bool { return r.obj.values[r.own(key)].v != nil }

// HasValue reports whether the key has a value, in the file or by default. It does not count as reading it.
func (r *ConfigReader) HasValue(key string) bool { return r.value(key) != nil }

// Entries is the number of keys of an object, 0 without the object. It does not count as reading it.
func (r *ConfigReader) Entries(key string) int {
	if obj, ok := r.value(key).(*object); ok {
		return len(obj.keys)
	}
	return 0
}

// Err is the first error.
func (r *ConfigReader) Err() error { return *r.err }

// Fail records an error about a key, unless there is one already: `config.json: "key" is value: why`.
func (r *ConfigReader) Fail(key, why string, args ...any) {
	if *r.err != nil {
		return
	}
	why = fmt.Sprintf(why, args...)
	is := "missing"
	switch meant := r.value(key); {
	case r.Has(key):
		is = show(meant)
	case r.IsNull(key):
		is = "null"
	case meant != nil:
		is = "missing, which means " + show(meant)
	}
	*r.err = fmt.Errorf("%s: %s is %s: %s", r.path, terminal.Quote(r.prefix+r.own(key)), is, why)
}

// IsNull reports whether the key is there and null. To transformers that may differ from an absent key.
func (r *ConfigReader) IsNull(key string) bool {
	v, there := r.obj.values[r.own(key)]
	return there && v.v == nil
}

// Default has keys that the file leaves out mean what d says; nil: they mean nothing.
func (r *ConfigReader) Default(d *Defaults) {
	if d != nil {
		r.defaults = *d
	}
}

// value returns the meaning of a key; nil: nothing.
func (r *ConfigReader) value(key string) any {
	own := r.own(key)
	v, there := r.obj.values[own]
	if v.v != nil || there && r.defaults.null[own] {
		return v.v
	}
	if d, ok := r.defaults.absent[own]; ok {
		return d.v
	}
	return r.defaults.absent[key].v
}

// Called gives keys the names that older files have for them. A key that the file has under the name that is asked for
// is read by that.
func (r *ConfigReader) Called(names map[string]string) { r.called = names }

// own is the name of a key in the file.
func (r *ConfigReader) own(key string) string {
	if _, there := r.obj.values[key]; !there && r.called[key] != "" {
		return r.called[key]
	}
	return key
}

// get is the value of a key that is marked as read; nil after an error or if it is absent.
func (r *ConfigReader) get(key string) any {
	r.read[r.own(key)] = true
	if *r.err != nil {
		return nil
	}
	return r.value(key)
}

// Size reads a whole number of at least 1 that must be there, or have a default.
func (r *ConfigReader) Size(key string) int {
	if r.get(key) == nil {
		r.Fail(key, "a positive whole number is expected")
	}
	return r.SizeOr(key, 0)
}

// SizeOr reads a whole number of at least 1; def stands for an absent one.
func (r *ConfigReader) SizeOr(key string, def int) int {
	n := r.IntOr(key, def)
	if r.Has(key) && *r.err == nil && n < 1 {
		r.Fail(key, "a positive whole number is expected")
		return 0
	}
	return n
}

// IntOr reads a whole number of at most 2^31 - 1 in magnitude; def stands for an absent one.
func (r *ConfigReader) IntOr(key string, def int) int {
	v := r.get(key)
	if v == nil {
		return def
	}
	num, ok := v.(json.Number)
	if !ok {
		r.Fail(key, "a whole number is expected")
		return 0
	}
	n, err := num.Int64()
	if err != nil {
		r.Fail(key, "a whole number is expected")
		return 0
	}
	if n > maxSize || n < -maxSize {
		r.Fail(key, "it must be at most %d", maxSize)
		return 0
	}
	return int(n)
}

// Int reads a whole number that must be there, or have a default.
func (r *ConfigReader) Int(key string) int {
	if r.get(key) == nil {
		r.Fail(key, "a whole number is expected")
	}
	return r.IntOr(key, 0)
}

// Float reads a finite number that must be there, or have a default.
func (r *ConfigReader) Float(key string) float64 {
	if r.get(key) == nil {
		r.Fail(key, "a number is expected")
	}
	return r.FloatOr(key, 0)
}

// FloatOr reads a finite number; def stands for an absent one.
func (r *ConfigReader) FloatOr(key string, def float64) float64 {
	v := r.get(key)
	if v == nil {
		return def
	}
	num, ok := v.(json.Number)
	if !ok {
		r.Fail(key, "a number is expected")
		return 0
	}
	x, err := num.Float64()
	if err != nil || math.IsInf(x, 0) {
		r.Fail(key, "it is out of range")
		return 0
	}
	return x
}

// Positive reads a number above zero; def stands for an absent one, and 0 as def for one that must be there.
func (r *ConfigReader) Positive(key string, def float64) float64 {
	if def == 0 && r.get(key) == nil {
		r.Fail(key, "a positive number is expected")
	}
	x := r.FloatOr(key, def)
	if r.Err() == nil && x <= 0 {
		r.Fail(key, "a positive number is expected")
	}
	return x
}

// Bool reads true or false; no value means false.
func (r *ConfigReader) Bool(key string) bool { return r.BoolOr(key, false) }

// BoolOr reads true or false; def stands for an absent one.
func (r *ConfigReader) BoolOr(key string, def bool) bool {
	v := r.get(key)
	if v == nil {
		return def
	}
	b, ok := v.(bool)
	if !ok {
		r.Fail(key, "true or false is expected")
	}
	return b
}

// StringOr reads a string; def stands for an absent one.
func (r *ConfigReader) StringOr(key, def string) string {
	v := r.get(key)
	if v == nil {
		return def
	}
	s, ok := v.(string)
	if !ok {
		r.Fail(key, "a string is expected")
	}
	return s
}

// OneOf reads a string that must be one of those; def stands for an absent one.
func (r *ConfigReader) OneOf(key, def string, supported ...string) string {
	s := r.StringOr(key, def)
	if *r.err != nil || !r.Has(key) {
		return s
	}
	for _, t := range supported {
		if s == t {
			return s
		}
	}
	verb := "are"
	if len(supported) == 1 {
		verb = "is"
	}
	r.Fail(key, "supported %s %s", verb, strings.Join(supported, ", "))
	return ""
}

// StringsOr reads a list of strings; def stands for an absent one.
func (r *ConfigReader) StringsOr(key string, def []string) []string {
	v := r.get(key)
	if v == nil {
		return def
	}
	list, ok := v.([]value)
	out := make([]string, len(list))
	for i, e := range list {
		if ok {
			out[i], ok = e.v.(string)
		}
	}
	if !ok {
		r.Fail(key, "a list of strings is expected")
		return nil
	}
	return out
}

// IntsOr reads a list of whole numbers of at most 2^31 - 1 in magnitude; def stands for an absent one.
func (r *ConfigReader) IntsOr(key string, def []int) []int {
	v := r.get(key)
	if v == nil {
		return def
	}
	list, ok := v.([]value)
	out := make([]int, len(list))
	for i, e := range list {
		num, isNumber := e.v.(json.Number)
		n, err := num.Int64()
		if ok = ok && isNumber && err == nil && -maxSize <= n && n <= maxSize; ok {
			out[i] = int(n)
		}
	}
	if !ok {
		r.Fail(key, "a list of whole numbers is expected")
		return nil
	}
	return out
}

// FloatsOr reads a list of finite numbers; def stands for an absent one.
func (r *ConfigReader) FloatsOr(key string, def []float64) []float64 {
	v := r.get(key)
	if v == nil {
		return def
	}
	list, ok := v.([]value)
	out := make([]float64, len(list))
	for i, e := range list {
		num, isNumber := e.v.(json.Number)
		x, err := num.Float64()
		ok = ok && isNumber && err == nil && !math.IsInf(x, 0)
		out[i] = x
	}
	if !ok {
		r.Fail(key, "a list of numbers is expected")
		return nil
	}
	return out
}

// Require refuses a key that has another value than the one that is supported: a bool, an int, a float64 or a string. A null
// that means no value is not true.
func (r *ConfigReader) Require(key string, want any) {
	v := r.get(key)
	if v == nil && !(want == true && r.IsNull(key) && r.defaults.null[r.own(key)]) {
		return
	}
	same := false
	switch want := want.(type) {
	case bool, string:
		same = v == want
	case int:
		same = numberIs(v, float64(want))
	case float64:
		same = numberIs(v, want)
	default:
		panic(fmt.Sprintf("hf: Require cannot compare a %T", want))
	}
	if !same {
		r.Fail(key, "supported is %s", show(want))
	}
}

func numberIs(v any, want float64) bool {
	num, ok := v.(json.Number)
	if !ok {
		return false
	}
	x, err := num.Float64()
	return err == nil && x == want
}

// Object reads a nested object; ok is false if it is absent. Its reader shares this one's error, and Finish looks
// into it. Each call returns the same reader.
func (r *ConfigReader) Object(key string) (nested *ConfigReader, ok bool) {
	v := r.get(key)
	if v == nil {
		return nil, false
	}
	obj, ok := v.(*object)
	if !ok {
		r.Fail(key, "an object is expected")
		return nil, false
	}
	prefix := r.prefix + key + "."
	if !r.Has(key) {
		return &ConfigReader{path: r.path, prefix: prefix, obj: obj, isOurs: true, read: map[string]bool{}, err: r.err}, true
	}
	for _, c := range r.children {
		if c.prefix == prefix {
			return c, true
		}
	}
	nested = &ConfigReader{path: r.path, prefix: prefix, obj: obj, isOurs: r.isOurs, read: map[string]bool{}, err: r.err}
	r.children = append(r.children, nested)
	return nested, true
}

// IsEmpty reports whether the object has no keys.
func (r *ConfigReader) IsEmpty() bool { return len(r.obj.keys) == 0 }

// Config reads a nested object that must be there and is a configuration of its own, such as "text_config": keys that
// never matter are left out there, too.
func (r *ConfigReader) Config(key string) *ConfigReader {
	nested, ok := r.Object(key)
	if !ok {
		r.Fail(key, "an object is expected")
		return &ConfigReader{path: r.path, prefix: r.prefix + key + ".", obj: &object{values: map[string]value{}},
			read: map[string]bool{}, err: r.err}
	}
	nested.config = true
	return nested
}

// Ignore marks keys as read.
func (r *ConfigReader) Ignore(keys ...string) {
	for _, k := range keys {
		r.read[r.own(k)] = true
	}
}

// Unread names the keys that are not null and were not read, in the order of the file, nested ones as
// "rope_scaling.factor". Keys that never matter, such as "transformers_version", are left out in configurations.
func (r *ConfigReader) Unread() []string {
	skip := map[string]bool{}
	if r.config {
		for _, k := range inertKeys {
			skip[k] = true
		}
	}
	var out []string
	for _, k := range r.obj.keys {
		if !r.read[k] && !skip[k] && r.Has(k) {
			out = append(out, r.prefix+k)
		}
	}
	for _, c := range r.children {
		out = append(out, c.Unread()...)
	}
	return out
}

// quantizationKey describes weights that are stored in few bits, as those of GPTQ, AWQ and bitsandbytes.
const quantizationKey = "quantization_config"

// quantization is the name of the method in parentheses; empty where it is not known.
func (r *ConfigReader) quantization() string {
	o, isObject := r.obj.values[quantizationKey].v.(*object)
	if !isObject {
		return ""
	}
	if method, isText := o.values["quant_method"].v.(string); isText {
		return " (" + terminal.Quote(method) + ")"
	}
	return ""
}

// Quantized marks the description of weights that are stored in few bits as read if its method is one of those that
// the family's weights may have. Finish refuses others.
func (r *ConfigReader) Quantized(methods ...string) {
	if o, isObject := r.obj.values[quantizationKey].v.(*object); isObject {
		if method, isText := o.values["quant_method"].v.(string); isText && slices.Contains(methods, method) {
			r.Ignore(quantizationKey)
		}
	}
}

// FP8 does so for weights in FP8 with a scale for each block of 128 rows and columns; other forms of FP8 are errors.
func (r *ConfigReader) FP8() {
	if o, isObject := r.obj.values[quantizationKey].v.(*object); !isObject || o.values["quant_method"].v != "fp8" {
		return
	}
	o, _ := r.Object(quantizationKey)
	o.Require("quant_method", "fp8")
	o.OneOf("fmt", "e4m3", "e4m3")
	if size := o.IntsOr("weight_block_size", nil); !slices.Equal(size, []int{fp8Block, fp8Block}) {
		o.Fail("weight_block_size", "supported are blocks of %d rows and columns", fp8Block)
	}
	o.Ignore("activation_scheme", "modules_to_not_convert", "scale_fmt") // of inference; the files say the rest
}

// Finish returns the first error. Without one, it returns an error that names the first key that was not read, if any.
func (r *ConfigReader) Finish() error {
	if *r.err != nil {
		return *r.err
	}
	unread := r.Unread()
	if len(unread) == 0 {
		return nil
	}
	if slices.Contains(unread, quantizationKey) {
		return fmt.Errorf("%s: %s is not supported: the weights are quantized%s, and only those of the original model "+
			"can be trained; use that", r.path, terminal.Quote(quantizationKey), r.quantization())
	}
	return fmt.Errorf("%s: %s is not supported for this kind of model: remove it only if you know that it changes nothing", r.path, terminal.Quote(unread[0]))
}
