package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/vfs"
)

// The handover of a run
//
// A model that a run writes has to work where only its directory is: the programs that serve it read how text becomes
// tokens, how a conversation becomes text and where an answer ends from the files in it. These are the run's decisions,
// and the files of the model that it started from know nothing of them. So a handover has them. Checkpoints keep it, and
// so an export of one writes the same files as the run.
//
//   - The tokenizer: the files of the one that the run used. That of bytes is written as a byte-level BPE.
//   - Chat templates: transformers, vLLM and SGLang read chat_template.jinja before tokenizer_config.json, llama.cpp's
//     converter the other way round, and processors read chat_template.json. So where the files of the tokenizer do not
//     say what the run used, or not all the same, the templates are written as transformers 5 does, and every other
//     copy is left out. Variables that the run set (chat_template_kwargs) are defaults in the template: no file has a
//     place for them.
//   - Ends: transformers ends a generation at eos_token_id of generation_config.json, and at that of config.json only
//     where there is no such file; vLLM and SGLang read the same. So that file lists the tokens that end trained
//     turns. eos_token of tokenizer_config.json stays: templates write it into texts, and padding takes it.
//   - With another tokenizer than the model's the ids of config.json and generation_config.json mean other tokens, and
//     are replaced.

// Handover holds the files for the directory of a model with which other programs use it as the run did.
type Handover struct {
	// Tokenizer is empty for the model's own, bytes, or a path as the run file has it.
	Tokenizer string `json:"tokenizer,omitempty"`
	// Templates are chat templates by name, with the variables of the run as defaults; nil: the tokenizer's directory
	// has the templates that the run used, or the run used none.
	Templates map[string]string `json:"templates,omitempty"`
	// Ends are the tokens that end what the run was trained on, sorted, and Texts are theirs.
	Ends  []int32          `json:"ends,omitempty"`
	Texts map[int32]string `json:"texts,omitempty"`
}

// HandOver finds what a run hands over. The reader has read its rows, and the dataset has them as tokens.
func (s *Source) HandOver(c *runfile.Config, r Reader, trained *data.Dataset) (*Handover, error) {
	h := &Handover{Ends: trained.Ends(), Texts: map[int32]string{}}
	if c.Tokenizer != "auto" {
		h.Tokenizer = c.Tokenizer
	}
	chat, ok := r.Renderer.(*data.Chat)
	isPlain := func(s data.Source) bool { return !ok || !chat.Renders(s.Type) }
	if eos := r.Tokenizer.EOS(); eos != tokenizer.None && slices.ContainsFunc(trained.Sources(), isPlain) {
		h.With(&Handover{Tokenizer: h.Tokenizer, Ends: []int32{eos}}) // which ends plain texts
	}
	for _, id := range h.Ends {
		h.Texts[id] = r.Tokenizer.Token(id)
	}
	if !ok {
		return h, nil
	}
	asWritten := chat.Written()
	isFile := !slices.Contains([]string{"", "auto", "model", "conversations"}, c.ChatTemplate)
	dir := s.tokenizerDir(h.Tokenizer)
	if !isFile && dir != "" && len(chat.Kwargs()) == 0 {
		same, err := hasTemplates(dir, asWritten)
		if err != nil || same {
			return h, err
		}
	}
	for name := range asWritten {
		if _, err := hf.TemplateFile(name); err != nil {
			return nil, err
		}
	}
	h.Templates = asWritten
	return h, nil
}

// With adds the ends of what was handed over before, by the checkpoint that the run continues from.
func (h *Handover) With(before *Handover) {
	if before != nil && before.Tokenizer == h.Tokenizer {
		h.Ends = slices.Sorted(slices.Values(slices.Concat(h.Ends, before.Ends)))
		h.Ends = slices.Compact(h.Ends)
		for id, text := range before.Texts {
			h.Texts[id] = text
		}
	}
}

// HandedOver reads what a checkpoint's run hands over; nil where an older version has saved it.
func HandedOver(from *checkpoint.Checkpoint) *Handover {
	var at struct { // of the place in the data, which has more
		Handover *Handover `json:"handover"`
	}
	if json.Unmarshal(from.Manifest.Data, &at) != nil {
		return nil // of a program that has its own place in its own data
	}
	return at.Handover
}

// tokenizerDir is the directory of what the key tokenizer names; empty for bytes.
func (s *Source) tokenizerDir(name string) string {
	switch name {
	case "", "auto":
		return s.Dir
	case "bytes":
		return ""
	}
	if st, err := os.Stat(name); err == nil && !st.IsDir() {
		return filepath.Dir(name)
	}
	return name
}

// hasTemplates reports whether all copies of chat templates in a directory are these.
func hasTemplates(dir string, want map[string]string) (bool, error) {
	var files, config template.Config
	doc, err := below.Read(dir, "tokenizer_config.json", maxGenerationBytes)
	if err == nil {
		config, err = template.ReadConfig(doc)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := files.ReadFiles(dir); err != nil {
		return false, err
	}
	all := []map[string]string{config.Templates, files.Templates}
	doc, err = below.Read(dir, "chat_template.json", maxGenerationBytes)
	if err == nil {
		config, err = template.ReadConfig(doc)
		all = append(all, config.Templates)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	have := 0
	for _, templates := range all {
		for name, text := range templates {
			if want[name] != text {
				return false, nil
			}
		}
		have = max(have, len(templates))
	}
	return have == len(want), nil
}

// textFiles are the files of a model directory besides weights and card, by name with slashes: the text of those that
// are made, and the directory of those that are copied.
type textFiles struct {
	made   map[string][]byte
	copied map[string]string
}

// TextFiles are the files that hand over how the model is used, for a config.json.
func (s *Source) TextFiles(config []byte) (*textFiles, error) {
	f := &textFiles{made: map[string][]byte{}, copied: map[string]string{}}
	h := s.Hands
	if h == nil {
		h = &Handover{}
	}
	dir := s.tokenizerDir(h.Tokenizer)
	if dir == "" {
		f.made = tokenizer.BytesFiles()
	} else if err := f.copy(dir); err != nil {
		return nil, err
	}
	if s.hasOwnIDs(h.Tokenizer) && vfs.Exists(filepath.Join(s.Dir, GenerationName)) {
		f.copied[GenerationName] = s.Dir
	}
	if st, err := os.Stat(h.Tokenizer); h.Tokenizer != "" && err == nil && !st.IsDir() && filepath.Base(h.Tokenizer) != "tokenizer.json" {
		doc, err := below.ReadFile(h.Tokenizer, maxTokenizerBytes)
		if err != nil {
			return nil, err
		}
		f.make("tokenizer.json", doc)
	}
	if h.Templates != nil {
		if err := f.setTemplates(h.Templates); err != nil {
			return nil, err
		}
	}
	f.make("config.json", config)
	return f, f.setIDs(s, h)
}

// maxTokenizerBytes is the limit that the tokenizer has for its file.
const maxTokenizerBytes = 1 << 28

// copy has the sidecars of a directory copied.
func (f *textFiles) copy(dir string) error {
	names, err := hf.Sidecars(dir)
	for _, name := range names {
		f.copied[name] = dir
	}
	return err
}

func (f *textFiles) make(name string, doc []byte) {
	delete(f.copied, name)
	f.made[name] = doc
}

// read is the text of a file that is made or copied; an fs.ErrNotExist if it is neither.
func (f *textFiles) read(name string) ([]byte, error) {
	if doc, ok := f.made[name]; ok {
		return doc, nil
	}
	if dir, ok := f.copied[name]; ok {
		return below.Read(dir, name, maxTokenizerBytes)
	}
	return nil, fs.ErrNotExist
}

// setTemplates has these chat templates as the only ones.
func (f *textFiles) setTemplates(templates map[string]string) error {
	maps.DeleteFunc(f.copied, func(name, _ string) bool {
		return strings.HasPrefix(name, "chat_template.") || strings.Contains(name, "/")
	})
	const config = "tokenizer_config.json"
	doc, err := f.read(config)
	switch {
	case err == nil:
		changed, err := hf.WithoutKey(doc, "chat_template")
		if err != nil {
			return fmt.Errorf("%s: %w", config, err)
		}
		if len(changed) != len(doc) {
			f.make(config, changed)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	for name, text := range templates {
		file, err := hf.TemplateFile(name)
		if err != nil {
			return err
		}
		f.make(file, []byte(text))
	}
	return nil
}

const GenerationName = "generation_config.json"

// setIDs has generation_config.json list the ends of a handover, and gives both configurations the ids of another
// tokenizer than the model's.
func (f *textFiles) setIDs(s *Source, h *Handover) error {
	if s.Model.Scores() && s.hasOwnIDs(h.Tokenizer) { // it generates nothing
		return nil
	}
	doc, err := f.read(GenerationName)
	hasFile := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.hasOwnIDs(h.Tokenizer) {
		ends, err := s.ListedEnds()
		if err != nil {
			return err
		}
		missing := without(h.Ends, ends)
		if len(missing) == 0 {
			return nil
		}
		ids := map[string]string{"eos_token_id": idsText(append(ends, missing...))}
		if !hasFile { // transformers then takes these of config.json
			doc = []byte("{\n}\n")
			for _, key := range []string{"bos_token_id", "pad_token_id"} {
				if id, ok := s.Config.TokenID(key); ok {
					ids[key] = fmt.Sprint(id)
				}
			}
		}
		return f.setKeys(GenerationName, doc, ids)
	}
	tok, err := s.OpenTokenizer(h.Tokenizer)
	if err != nil {
		return err
	}
	if !hasFile {
		doc = []byte("{\n}\n")
	}
	ends, err := endsIn(GenerationName, doc)
	if err != nil {
		return err
	}
	if eos := tok.EOS(); eos != tokenizer.None {
		ends = append(ends, without([]int32{eos}, ends)...)
	}
	ids := map[string]string{"eos_token_id": idsText(append(ends, without(h.Ends, ends)...)), "bos_token_id": "null"}
	if bos := tok.BOS(); bos != tokenizer.None {
		ids["bos_token_id"] = fmt.Sprint(bos)
	}
	if err := f.setKeys(GenerationName, doc, ids); err != nil {
		return err
	}
	if !s.Model.Scores() { // where it is the run's
		ids["pad_token_id"] = "null"
	}
	return f.setKeys("config.json", f.made["config.json"], ids)
}

// setKeys makes a file of a JSON object in which keys have other values.
func (f *textFiles) setKeys(name string, doc []byte, values map[string]string) (err error) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if doc, err = hf.WithKey(doc, key, values[key]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	f.make(name, doc)
	return nil
}

// without are the ids of a list that another has not.
func without(ids, others []int32) (left []int32) {
	for _, id := range ids {
		if !slices.Contains(others, id) {
			left = append(left, id)
		}
	}
	return left
}

// idsText is eos_token_id as transformers writes it: a number, or a list of several.
func idsText(ids []int32) string {
	switch len(ids) {
	case 0:
		return "null"
	case 1:
		return fmt.Sprint(ids[0])
	}
	return strings.ReplaceAll(fmt.Sprint(ids), " ", ", ")
}

// AddTo brings the files into a directory that is written.
func (f *textFiles) AddTo(w *hf.ModelWriter) error {
	for _, name := range slices.Sorted(maps.Keys(f.copied)) {
		if err := w.AddSidecar(f.copied[name], name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.made)) {
		if err := w.AddFile(name, f.made[name]); err != nil {
			return err
		}
	}
	return nil
}

// WriteTo writes the files to an empty directory of the system, for what reads a model's directory.
func (f *textFiles) WriteTo(dir string) error {
	for name := range f.copied {
		doc, err := f.read(name)
		if err != nil {
			return err
		}
		f.made[name] = doc
	}
	for name, doc := range f.made {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := vfs.WriteFileAtomic(vfs.OS{}, path, doc); err != nil {
			return err
		}
	}
	return nil
}

// EndsNote says which tokens will end a generation of the model that do not end one of the model which the run began
// with; empty where it adds no token.
func (s *Source) EndsNote() (string, error) {
	if s.Hands == nil || !s.hasOwnIDs(s.Hands.Tokenizer) {
		return "", nil
	}
	ends, err := s.ListedEnds()
	if err != nil {
		return "", err
	}
	added := without(s.Hands.Ends, ends)
	if len(added) == 0 {
		return "", nil
	}
	return fmt.Sprintf("trained texts end with %s, at which %s does not say that a generation ends: %s of the model that "+
		"is written will list it", strings.Join(s.Hands.Named(added), " and "), s.Dir, GenerationName), nil
}

// Named are tokens with their ids, such as "<|im_end|> (2)".
func (h *Handover) Named(ids []int32) (all []string) {
	for _, id := range ids {
		all = append(all, fmt.Sprintf("%s (%d)", h.Texts[id], id))
	}
	return all
}
