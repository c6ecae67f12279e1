package gguf

import (
	"encoding/json"
	"strings"
)

// preTokenizer has the part of tokenizer.json for a value of tokenizer.ggml.pre: how text is cut before the merges.
type preTokenizer struct {
	normalizer   string // JSON
	preTokenizer string // JSON
	ignoreMerges bool   // a piece that is a token as a whole is not merged
	addBOS       bool   // unless the file says otherwise
}

const (
	byteLevelPlain = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`
	byteLevelGPT2  = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`
	isolatedDigits = `{"type":"Digits","individual_digits":true}`
	nfc            = `{"type":"NFC"}`
	jsonNone       = "null"
)

// sequence does one step of a pre_tokenizer after the other.
func sequence(steps ...string) string {
	return `{"type":"Sequence","pretokenizers":[` + strings.Join(steps, ",") + `]}`
}

// isolate makes each match of a regular expression a piece, and what is between them.
func isolate(regex string) string {
	pattern, err := json.Marshal(regex)
	if err != nil {
		panic(err) // the expressions are constants
	}
	return `{"type":"Split","pattern":{"Regex":` + string(pattern) + `},"behavior":"Isolated","invert":false}`
}

// split isolates the matches of regular expressions, of one after the other, and then maps bytes to characters.
func split(regexes ...string) string {
	var steps []string
	for _, regex := range regexes {
		steps = append(steps, isolate(regex))
	}
	return sequence(append(steps, byteLevelPlain)...)
}

// Expressions that several tokenizers have. A word of cased has upper-case letters and then lower-case ones.
const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	wordsToEnd   = `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}`
	signsToEnd   = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	casedStart   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	casedEnd     = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	casedSigns   = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	markedWords  = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" +
		"| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
	deepseekWide = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
	// deepseekLetters are letters that have cases.
	deepseekLetters = "" +
		"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373" +
		"\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-" +
		"\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-" +
		"\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D" +
		"\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-" +
		"\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-" +
		"\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-" +
		"\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-" +
		"\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-" +
		"\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
)

// preTokenizers has the names that llama.cpp gives to the tokenizers of model families (llama-vocab.cpp), each with
// what the tokenizer.json of the original family says, or else with llama.cpp's own rule. llama.cpp does not normalize:
// where there is a normalizer, it is the family's.
var preTokenizers = func() map[string]preTokenizer {
	gpt2 := preTokenizer{normalizer: jsonNone, preTokenizer: byteLevelGPT2}
	digits := preTokenizer{normalizer: jsonNone, preTokenizer: sequence(isolatedDigits, byteLevelGPT2)}
	command := digits
	command.normalizer = nfc
	dbrx := preTokenizer{normalizer: jsonNone, preTokenizer: split(contractions + wordsToEnd + `{1,3}` + signsToEnd)}
	glm4 := dbrx
	glm4.ignoreMerges = true
	llama3 := glm4
	llama3.addBOS = true
	qwen2 := preTokenizer{normalizer: nfc, preTokenizer: split(contractions + wordsToEnd + signsToEnd)}
	stable := qwen2
	stable.normalizer = jsonNone
	qwen35 := preTokenizer{normalizer: nfc, preTokenizer: split(contractions +
		`|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)}
	// Source: tiktoken, openai_public.py (o200k_base).
	o200k := casedStart + `*` + casedEnd + `+` + contractions + `?|` + casedStart + `+` +
		casedEnd + `*` + contractions + `?|\p{N}{1,3}` + casedSigns
	gpt4o := preTokenizer{normalizer: jsonNone, preTokenizer: split(o200k)}
	rules := map[string]preTokenizer{
		"tekken": {normalizer: jsonNone, ignoreMerges: true, addBOS: true, preTokenizer: split(casedStart + `*` +
			casedEnd + `+|` + casedStart + `+` + casedEnd + `*|\p{N}` + casedSigns)},
		"deepseek-llm": {normalizer: jsonNone, preTokenizer: split("[\r\n]", `\s?[`+deepseekLetters+`]+`,
			"\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", `\s+$`,
			deepseekWide, `\p{N}+`)},
		"deepseek-coder": {normalizer: jsonNone, preTokenizer: split("[\r\n]", `\s?\p{L}+`, `\s?\p{P}+`,
			deepseekWide, `\p{N}`)},
		"deepseek-v3": {normalizer: jsonNone, preTokenizer: split(`\p{N}{1,3}`,
			"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", markedWords)},
		"minicpm5": {normalizer: jsonNone, ignoreMerges: true, preTokenizer: split(`\p{N}{1,3}`, contractions+
			wordsToEnd+`+`+signsToEnd)},
		"seed-coder": {normalizer: jsonNone, preTokenizer: split(contractions + wordsToEnd + `{1}` +
			`| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`)},
		"chameleon": {normalizer: jsonNone, addBOS: true, preTokenizer: sequence(isolate(`<sentinel:[0-9]+>`),
			isolate(`(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`), isolate(`([\t\n]|    |  )`), isolatedDigits,
			isolate("[\\p{P}!-/:-@\\[-`{-~]"), byteLevelGPT2)},
	}
	for _, same := range []struct {
		rule  preTokenizer
		names []string
	}{
		{gpt2, []string{"gpt-2", "phi-2", "mpt", "olmo", "gigachat", "a.x-4.0", "mellum", "trillion", "exaone4"}},
		{digits, []string{"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"}},
		{command, []string{"command-r"}},
		{llama3, []string{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}},
		{dbrx, []string{"dbrx", "smaug-bpe", "chatglm-bpe"}},
		{glm4, []string{"glm4", "glm5"}},
		{qwen2, []string{"qwen2", "deepseek-r1-qwen", "megrez"}},
		{stable, []string{"kormo", "stablelm2"}},
		{qwen35, []string{"qwen35"}},
		{gpt4o, []string{"gpt-4o", "llama4"}},
	} {
		for _, name := range same.names {
			rules[name] = same.rule
		}
	}
	return rules
}()
