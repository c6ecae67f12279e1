package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
)

// BytesFiles are the files of a model directory whose tokenizer gives the ids of [Bytes], by name: a byte-level BPE
// without merges. Unlike Bytes it finds the text <|endoftext|> as token 256.
func BytesFiles() map[string][]byte {
	var vocab strings.Builder
	for i, r := range alphabet {
		fmt.Fprintf(&vocab, "\n      %s: %d,", strconv.Quote(string(r)), i)
	}
	end := strconv.Quote(Bytes().Token(byteEOS))
	return map[string][]byte{"tokenizer.json": fmt.Appendf(nil, `{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [
    {"id": %[1]d, "content": %[2]s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
  ],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {%[3]s
      %[2]s: %[1]d
    },
    "merges": []
  }
}
`, byteEOS, end, vocab.String()), configName: fmt.Appendf(nil, `{
  "add_prefix_space": false,
  "clean_up_tokenization_spaces": false,
  "eos_token": %s,
  "model_input_names": ["input_ids", "attention_mask"],
  "tokenizer_class": "PreTrainedTokenizerFast"
}
`, end)}
}
