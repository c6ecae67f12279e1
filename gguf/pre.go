package gguf

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/data/tokenizer"
)

// llama.cpp does not read how a tokenizer cuts text before its merges: it has a list of ways with names, and a file
// says one of them in tokenizer.ggml.pre. Its converter finds the name from the ids of one text. Here the same is done
// first; a tokenizer of its own vocabulary, which no list can have, is found by what its tokenizer.json says.

// preText is the text whose ids identify a tokenizer. Source: convert_hf_to_gguf.py, get_vocab_base_pre (chktxt).
const preText = "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis " +
	"concatenated) ✅ 🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 " +
	"?我想在apple工作1314151天～ ------======= нещо на Български " +
	"''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D " +
	"you like some tea? We'Ve a'lL"

// preNames has the name for the SHA-256 of the ids, written as Python prints a list: the tokenizers of models whose
// families are known here. Source: as above.
var preNames = map[string]string{
	"0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5": "llama-bpe",        // Llama 3
	"c136ed14d01c2745d4f60a9596ae66800e2b61fa45643e72436041855ad4089d": "smaug-bpe",        // Smaug-Llama-3
	"e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea": "qwen2",            // Qwen 1.5 to 3
	"d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c": "qwen2",            // Qwen3-Embedding
	"d30d75d9059f1aa2c19359de71047b3ae408c70875e8a3ccf8c5fba56c9d8af4": "qwen35",           // Qwen 3.5
	"2085e1638f6c377a0aa4ead21b27bb4cb941bf800df86ed391011769c1758dfb": "exaone4",          // EXAONE 4
	"b6dc8df998e1cfbdc4eac8243701a65afe638679230920b50d6f17d81c098166": "olmo",             // OLMo 1.7
	"b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5": "deepseek-r1-qwen", // DeepSeek-R1-Distill-Qwen
	"855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249": "smollm",           // SmolLM, SmolLM2
	"63b97e4253352e6f357cc59ea5b583e3a680eaeaf2632188c2b952de2588485e": "tekken",           // Mistral-Nemo
	"0e9433cbbb161f89e264eb32e8e64bfe69e834973ffca5d41d3948a604a3e2a3": "pixtral",          // Pixtral
	"049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754": "deepseek-llm",     // deepseek-llm
	"347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821": "deepseek-coder",   // deepseek-coder
	"877081d19cf6996e2c4ff0e1236341e9b7bde288f5311a56a937f0afbbb3aeb5": "deepseek-v3",      // DeepSeek-V3
	"3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454": "gpt-2",            // GPT-2
	"0fe1cf6eda062318a1af7270f3331a85c539a01778ff948e24388e949c5282f4": "gpt-2",            // ruGPT3XL
	"35d91631860c815f952d711435f48d356ebac988362536bed955d43bfa436e34": "starcoder",        // StarCoder2, Granite code
	"9d032fcbd5501f4a38150912590928bfb36091efb5df11b8e2124b0390e3fb1e": "falcon3",          // Falcon3
	"a6b57017d60e6edb4d88ecc2845188e0eb333a70357e45dcc9b53964a73bbae6": "falcon-h1",        // Falcon-H1
	"1431a23e583c97432bc230bff598d103ddb5a1f89960c8f1d1051aaa944d0b35": "minerva-7b",       // Minerva
	"60824e3c0d9401f89943cbb2fff727f0e2d4c545ba4df2d6e4f09a6db0f5b450": "chameleon",        // Chameleon
	"d4c8f286ea6b520b3d495c4455483cfa2302c0cfcd4be05d781b6a8a0a7cdaf1": "megrez",           // Megrez-3B
	"d5f1dd6f980fec569fb218a81a7658ac45fc56b38c5a0adeb1c232fbe04ef5ec": "seed-coder",       // Seed-Coder
	"b0a6b1c0bd5998ebd9df08611efde34a4ff03faed45ae09c43e6b31ebd4b94cf": "a.x-4.0",          // A.X-4.0
	"f6791d196f87ce6b56a7d234be618e0d58f8cda3549416635b2bebcd22cd95c4": "midm-2.0",         // Midm-2.0
	"a1e163ecab2e718a4c829d1148b6e86824ec36163bb71941c3dca9cd5ac25756": "mellum",           // Mellum-4b
	"4a2e2abae11ca2b86d570fc5b44be4d5eb5e72cc8f22dd136a94b37da83ab665": "kormo",            // KORMo
	"1994ffd01900cfb37395608534236ecd63f2bd5995d6cb1004dda1af50240f15": "trillion",         // Trillion-7B
	"ad851be1dba641f2e3711822f816db2c265f788b37c63b4e1aeacb9ee92de8eb": "gigachat",         // GigaChat-20B
	"7b3e7548e4308f52a76e8229e4e6cc831195d0d1df43aed21ac6c93da05fec5f": "codeshell",        // CodeShell
	"6221ad2852e85ce96f791f476e0b390cf9b474c9e3d1362f53a24a06dc8220ff": "refact",           // Refact
	"a8594e3edff7c29c003940395316294b2c623e09894deebbc65f33f1515df79e": "dbrx",             // DBRX
	"ccc2ef013c104be7bae2965776d611e1d7a8a2a9c547dd93a682c9a9fc80352e": "gpt-4o",           // GPT-4o
	"a1336059768a55c99a734006ffb02203cd450fed003e9a71886c88acf24fdbc2": "glm4",             // GLM-4
	"9ca2dd618e8afaf09731a7cf6e2105b373ba6a1821559f258b272fe83e6eb902": "glm4",             // GLM-4.5
	"cdf5f35325780597efd76153d4d1c16778f766173908894c04afc20108536267": "glm4",             // GLM-4.7
	"36f3066e97b7f3994b379aaacde306c1444c6ae84e81a5ae3cd2b7ed3b8c42d4": "minicpm5",         // MiniCPM5
	"9c2227e4dd922002fb81bde4fc02b0483ca4f12911410dee2255e4987644e3f8": "command-r",        // Command R
}

// preByRules are the names that are found by what tokenizer.json says. Of names with one rule the first one is taken.
var preByRules = []string{"gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3",
	"deepseek-llm", "deepseek-coder", "seed-coder", "minicpm5"}

// preNameOf is the name of how a byte-level BPE cuts text.
func preNameOf(t *tokenizer.Pipeline, v *tokenizer.Vocabulary) (string, error) {
	ids := t.Encode(preText, true)
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = strconv.Itoa(int(id))
	}
	if name, ok := preNames[fmt.Sprintf("%x", sha256.Sum256([]byte("["+strings.Join(text, ", ")+"]")))]; ok {
		return name, nil
	}
	steps, err := preSteps(v.PreTokenizer)
	if err != nil {
		return "", err
	}
	for _, name := range preByRules {
		p := preTokenizers[name]
		want, err := preSteps(json.RawMessage(p.preTokenizer))
		if err != nil {
			panic(err) // they are constants
		}
		if steps == want && p.ignoreMerges == v.IgnoreMerges {
			return name, nil
		}
	}
	return "", fmt.Errorf("no name of llama.cpp is known for how this tokenizer cuts text (pre_tokenizer of " +
		"tokenizer.json); name one of its list with --pre, such as one of a model with the same tokenizer")
}

// preStep is a step of a pre_tokenizer, with the keys that change how text is cut.
type preStep struct {
	Type             string          `json:"type"`
	PreTokenizers    json.RawMessage `json:"pretokenizers"`
	Pattern          json.RawMessage `json:"pattern"`
	Behavior         string          `json:"behavior"`
	Invert           bool            `json:"invert"`
	IndividualDigits bool            `json:"individual_digits"`
	AddPrefixSpace   *bool           `json:"add_prefix_space"`
	UseRegex         *bool           `json:"use_regex"`
}

// preSteps writes the steps of a pre_tokenizer in one way, so that two that do the same are equal.
func preSteps(raw json.RawMessage) (string, error) {
	var s preStep
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", err
	}
	is := func(b *bool) bool { return b == nil || *b } // the library's default of both
	switch s.Type {
	case "Sequence":
		var list []json.RawMessage
		if err := json.Unmarshal(s.PreTokenizers, &list); err != nil {
			return "", err
		}
		var all string
		for _, raw := range list {
			step, err := preSteps(raw)
			if err != nil {
				return "", err
			}
			all += step
		}
		return all, nil
	case "Split":
		var pattern struct{ Regex, String string }
		if err := json.Unmarshal(s.Pattern, &pattern); err != nil {
			return "", err
		}
		return fmt.Sprintf("Split %q %q %s %v\n", pattern.Regex, pattern.String, s.Behavior, s.Invert), nil
	case "Digits":
		return fmt.Sprintf("Digits %v\n", s.IndividualDigits), nil
	case "ByteLevel":
		return fmt.Sprintf("ByteLevel %v %v\n", is(s.AddPrefixSpace), is(s.UseRegex)), nil
	}
	return s.Type + "\n", nil
}
