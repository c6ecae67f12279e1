package tokenizer

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// A step that is not known is named, also where it has keys that no known one has.
func TestStepsThatAreUnknown(t *testing.T) {
	spec, err := os.ReadFile("testdata/smollm2.json")
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]json.RawMessage
	if err := json.Unmarshal(spec, &file); err != nil {
		t.Fatal(err)
	}
	for step, want := range map[string]string{
		`{"type": "FixedLength", "length": 5}`:                                          `pre_tokenizer: type "FixedLength" with the key "length" is not supported`,
		`{"type": "UnicodeScripts"}`:                                                    `pre_tokenizer: type UnicodeScripts is not supported`,
		`{"type": "Sequence", "pretokenizers": [{"type": "FixedLength", "length": 5}]}`: `type "FixedLength" with the key "length"`,
	} {
		file["pre_tokenizer"] = json.RawMessage(step)
		changed, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Parse(changed)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", step, err, want)
		}
	}
}
