package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/below"
	shared "github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/vfs"
)

// maxGenerationBytes bounds a generation_config.json; real ones have less than a kilobyte.
const maxGenerationBytes = 16 << 20

// hasOwnIDs reports whether the ids in the model's configuration are those of what the key tokenizer names: its own, or
// any where it has none. With another one they mean other tokens.
func (s *Source) hasOwnIDs(name string) bool {
	return s.tokenizerDir(name) == s.Dir || !vfs.Exists(filepath.Join(s.Dir, "tokenizer.json"))
}

// Ends are the tokens that end a text, for what the key tokenizer names: its end of text, and the eos_token_id of
// config.json and generation_config.json, of the model or next to another tokenizer.
func (s *Source) Ends(name string, tok tokenizer.Tokenizer) (map[int32]bool, error) {
	ends := map[int32]bool{}
	add := func(ids []int32, err error) error {
		for _, id := range ids {
			ends[id] = true
		}
		return err
	}
	if id := tok.EOS(); id != tokenizer.None {
		ends[id] = true
	}
	dir := s.tokenizerDir(name)
	if s.hasOwnIDs(name) {
		dir = s.Dir
		if err := add(endsIn(s.Config.Path(), s.Config.Raw())); err != nil {
			return nil, err
		}
	}
	if dir == "" {
		return ends, nil
	}
	ids, _, err := generationEnds(dir)
	return ends, add(ids, err)
}

// ListedEnds are the tokens at which transformers ends a generation of the model: those of generation_config.json, or
// without one those of config.json.
func (s *Source) ListedEnds() ([]int32, error) {
	ids, hasFile, err := generationEnds(s.Dir)
	if err != nil || hasFile {
		return ids, err
	}
	return endsIn(s.Config.Path(), s.Config.Raw())
}

// generationEnds reads the ids that end texts from the generation_config.json of a directory, if it has one.
func generationEnds(dir string) (ids []int32, hasFile bool, err error) {
	doc, err := below.Read(dir, GenerationName, maxGenerationBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err == nil {
		ids, err = endsIn(filepath.Join(dir, GenerationName), doc)
	}
	return ids, true, err
}

// endsIn are the eos_token_id of a configuration.
func endsIn(path string, doc []byte) ([]int32, error) {
	var c struct {
		EOS tokenIDs `json:"eos_token_id"`
	}
	if err := shared.Unmarshal(doc, &c); err != nil {
		return nil, fmt.Errorf("%s: eos_token_id: %w", path, err)
	}
	return c.EOS, nil
}

// tokenIDs are a token id, or a list of them, or null.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(doc []byte) error {
	var one int32
	if err := json.Unmarshal(doc, &one); err == nil {
		if string(doc) != "null" {
			*t = tokenIDs{one}
		}
		return nil
	}
	return json.Unmarshal(doc, (*[]int32)(t))
}
