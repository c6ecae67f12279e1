package source

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/traintest"
)

// ok ends a test at an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fails reports whether an error has a text; "" is no error.
func fails(err error, want string) bool {
	return (err != nil) == (want != "") && (err == nil || strings.Contains(err.Error(), want))
}

// open opens a model directory.
func open(t *testing.T, dir string) *Source {
	t.Helper()
	s, err := OpenModel(t.Context(), traintest.NewEnv(t), dir)
	ok(t, err)
	return s
}

// heard is an environment that keeps what it tells.
func heard(t *testing.T) (*session.Env, *[]string) {
	lines := &[]string{}
	env := traintest.NewEnv(t)
	env.Events = func(e session.Event) { *lines = append(*lines, e.String()) }
	return env, lines
}

// The ends of a text are those of the tokenizer and of the model's two configurations; with another tokenizer than the
// model's, whose ids mean other tokens, those that are next to that one.
func TestEnds(t *testing.T) {
	write := func(dir, name, text string) { traintest.Write(t, filepath.Join(dir, name), text) }
	for _, c := range []struct {
		what, name string            // of the tokenizer
		config     any               // eos_token_id of config.json
		files      map[string]string // of the model
		want       []int32
		listed     []int32
	}{
		{"nothing", "bytes", nil, nil, []int32{256}, nil},
		{"a number", "bytes", 7, nil, []int32{7, 256}, []int32{7}},
		{"a list", "bytes", []int{7, 0}, nil, []int32{0, 7, 256}, []int32{7, 0}},
		{"both", "bytes", 7, map[string]string{GenerationName: `{"eos_token_id": [3, 7]}`}, []int32{3, 7, 256}, []int32{3,
			7}},
		{"an empty file", "bytes", 7, map[string]string{GenerationName: `{}`}, []int32{7, 256}, nil},
		{"bytes for a model with a tokenizer", "bytes", 7, map[string]string{"tokenizer.json": "{}",
			GenerationName: `{"eos_token_id": 3}`}, []int32{256}, []int32{3}},
		{"the model's own", "auto", 7, map[string]string{"tokenizer.json": "{}", GenerationName: `{"eos_token_id": 3}`},
			[]int32{3, 7, 256}, []int32{3}},
	} {
		dir := traintest.WriteConfig(t, map[string]any{"eos_token_id": c.config})
		for name, text := range c.files {
			write(dir, name, text)
		}
		s := open(t, dir)
		ends, err := s.Ends(c.name, tokenizer.Bytes())
		if got := slices.Sorted(maps.Keys(ends)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: ends %v, %v; want %v", c.what, got, err, c.want)
		}
		if listed, err := s.ListedEnds(); err != nil || !slices.Equal(listed, c.listed) {
			t.Errorf("%s: listed are %v, %v; want %v", c.what, listed, err, c.listed)
		}
	}
	dir := traintest.WriteConfig(t, map[string]any{"eos_token_id": 7})
	write(dir, "tokenizer.json", "{}")
	other := t.TempDir()
	write(other, "tokenizer.json", "{}")
	write(other, GenerationName, `{"eos_token_id": 5}`)
	for _, name := range []string{other, filepath.Join(other, "tokenizer.json")} {
		ends, err := open(t, dir).Ends(name, tokenizer.Bytes())
		if got := slices.Sorted(maps.Keys(ends)); err != nil || !slices.Equal(got, []int32{5, 256}) {
			t.Errorf("with %s: ends %v, %v", name, got, err)
		}
	}
	write(dir, GenerationName, `{"eos_token_id": "x"}`)
	if _, err := open(t, dir).Ends("auto", tokenizer.Bytes()); !fails(err, "eos_token_id") {
		t.Errorf("an id that is a word: %v", err)
	}
	if _, err := open(t, dir).ListedEnds(); !fails(err, "eos_token_id") {
		t.Errorf("an id that is a word: %v", err)
	}
}

// A name of a model is a directory, or what the hub knows; files are refused with what to do.
func TestModelNames(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	for name, want := range map[string]string{"": "model is missing", filepath.Join(dir, "config.json"): "not a directory",
		dir: ""} {
		if _, err := OpenModel(t.Context(), traintest.NewEnv(t), name); !fails(err, want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	traintest.Write(t, filepath.Join(dir, "a.GGUF"), "")
	if _, err := OpenModel(t.Context(), traintest.NewEnv(t), filepath.Join(dir, "a.GGUF")); !fails(err,
		"millrace import") {
		t.Errorf("a GGUF file: %v", err)
	}
	if s := open(t, dir); s.Dir != dir || s.ID != "" || s.Model == nil {
		t.Errorf("it opens as %+v", s)
	}
	ok(t, open(t, dir).CheckWeights(t.Context()))
	if err := open(t, traintest.WriteConfig(t, nil)).CheckWeights(t.Context()); err == nil {
		t.Error("a model without weights has weights")
	}
}

// A tokenizer has to fit the vocabulary, and an error says what would make it fit.
func TestTokenizersFitTheModel(t *testing.T) {
	small := open(t, traintest.WriteConfig(t, map[string]any{"vocab_size": 256}))
	if _, err := small.OpenTokenizer("bytes"); !fails(err, "vocab_size to 257") {
		t.Errorf("256 rows for 257 bytes: %v", err)
	}
	exact := open(t, traintest.WriteConfig(t, map[string]any{"vocab_size": 257}))
	if tok, err := exact.OpenTokenizer("bytes"); err != nil || tok.VocabSize() != 257 || TokenizerNote(tok) != "" {
		t.Errorf("257 rows for 257 bytes: %v", err)
	}
	for _, name := range []string{"auto", "", t.TempDir()} {
		if _, err := exact.OpenTokenizer(name); !fails(err, "or set tokenizer to another, or to bytes") {
			t.Errorf("%q without tokenizer.json: %v", name, err)
		}
	}
	traintest.Write(t, filepath.Join(exact.Dir, "tokenizer.json"), "{")
	if _, err := exact.OpenTokenizer("auto"); !fails(err, "download it again") {
		t.Errorf("a tokenizer.json that is cut short: %v", err)
	}
}

// chatModel is a directory with a chat template, or without one.
func chatModel(t *testing.T, has bool) string {
	t.Helper()
	dir := traintest.WriteModel(t, nil)
	if has {
		traintest.Write(t, filepath.Join(dir, "chat_template.jinja"), traintest.TurnTemplate)
	}
	return dir
}

// The key chat_template says which template rows are rendered with, and which rows.
func TestChatTemplates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jinja")
	traintest.Write(t, file, traintest.TurnTemplate)
	for _, c := range []struct {
		key     string
		has     bool
		chat    bool
		all     bool
		err     string
		kwargs  data.Kwargs
		lastOne bool
	}{
		{key: "auto"},
		{key: ""},
		{key: "conversations"},
		{key: "auto", has: true, chat: true, all: true},
		{key: "conversations", has: true, chat: true},
		{key: "model", has: true, chat: true, all: true, lastOne: true},
		{key: "model", err: "set chat_template to another"},
		{key: file, chat: true, all: true},
		{key: file + "x", err: "there is no file"},
		{key: "auto", kwargs: data.Kwargs{"a": 1}, err: "has no chat template, so nothing would read them"},
		{key: "auto", has: true, kwargs: data.Kwargs{"a": 1}, err: "a"},
	} {
		r, err := open(t, chatModel(t, c.has)).OpenReader(&runfile.Config{Tokenizer: "bytes", ChatTemplate: c.key,
			ChatTemplateKwargs: c.kwargs, TrainOnLast: c.lastOne, TrainOnPrompt: true})
		if !fails(err, c.err) {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		chat, isChat := r.Renderer.(*data.Chat)
		if isChat != c.chat || isChat && (chat.All != c.all || chat.LastTurn != c.lastOne) || !r.trainOnPrompt {
			t.Errorf("%+v: it renders with %+v", c, r.Renderer)
		}
	}
}

// What tokenizing may take is the budget, or half of what there is; garbage may grow meanwhile, up to the budget.
func TestTokenizingMemory(t *testing.T) {
	env := traintest.NewEnv(t)
	if got := tokenizingBytes(env, 5<<20); got != 5<<20 {
		t.Errorf("of a budget of 5 MiB it is %d", got)
	}
	if got := tokenizingBytes(env, 0); got <= 0 {
		t.Errorf("without a budget it is %d", got)
	}
	if env.MemoryGrows = true; tokenizingBytes(env, 0) != 0 {
		t.Error("it is limited where memory grows")
	}
	t.Setenv("GOGC", "")
	percent, limit := debug.SetGCPercent(25), debug.SetMemoryLimit(-1)
	defer debug.SetGCPercent(percent)
	restore := letGarbageGrow(1 << 40)
	if now := debug.SetGCPercent(tokenizingGCPercent); now != tokenizingGCPercent || debug.SetMemoryLimit(-1) != 1<<40 {
		t.Errorf("the heap may grow by %d%%, up to %d", now, debug.SetMemoryLimit(-1))
	}
	restore()
	if now := debug.SetGCPercent(25); now != 25 || debug.SetMemoryLimit(-1) != limit {
		t.Errorf("after it the heap may grow by %d%%, up to %d", now, debug.SetMemoryLimit(-1))
	}
	t.Setenv("GOGC", "50")
	letGarbageGrow(1 << 40)()
	if now := debug.SetGCPercent(25); now != 25 {
		t.Errorf("with GOGC the heap may grow by %d%%", now)
	}
}

// from is a checkpoint with a manifest.
func from(change func(m *checkpoint.Manifest)) *checkpoint.Checkpoint {
	m := &checkpoint.Manifest{}
	change(m)
	return &checkpoint.Checkpoint{Manifest: m}
}

// A run notes the weights that it began with, and continues from a checkpoint only with those.
func TestFindBase(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	s := open(t, dir)
	c := &runfile.Config{Init: "pretrained", Model: dir}
	ok(t, s.FindBase(t.Context(), c, nil))
	sum, err := hf.FingerprintOf(t.Context(), dir)
	ok(t, err)
	began := checkpoint.Base{Init: "pretrained", Model: dir, WeightsSHA256: sum}
	if *s.Base != began {
		t.Errorf("the run began with %+v", s.Base)
	}
	find := func(c *runfile.Config, then *checkpoint.Base) error {
		return s.FindBase(t.Context(), c, from(func(m *checkpoint.Manifest) { m.Base = then }))
	}
	other := began
	other.WeightsSHA256 = "x"
	elsewhere := other
	elsewhere.Model = "/m"
	random := began
	random.Init = "random"
	moved := began
	moved.Model = "/m"
	for i, then := range []*checkpoint.Base{&began, nil, &other, &elsewhere, &random, &moved} {
		want := []string{"", "", "are others than when the run of", "it began from /m", "began with init: random", ""}[i]
		if err := find(c, then); !fails(err, want) {
			t.Errorf("%+v: %v", then, err)
		}
		if want == "" && then != nil && s.Base != then {
			t.Errorf("%+v: the base is %+v", then, s.Base)
		}
	}
	if ok(t, find(&runfile.Config{Init: "random", Model: "x"}, nil)); s.Base.Init != "random" ||
		s.Base.WeightsSHA256 != "" {
		t.Errorf("random weights began as %+v", s.Base)
	}
	s = open(t, traintest.WriteConfig(t, nil))
	if err := s.FindBase(t.Context(), c, nil); err == nil {
		t.Error("a run begins with weights that are not there")
	}
	if err := find(c, &began); err != nil {
		t.Errorf("weights that cannot be read, and are in the checkpoint: %v", err)
	}
}

// A handover adds the ends of the one before if its tokenizer is the same.
func TestHandoverAddsEnds(t *testing.T) {
	for name, want := range map[string][]int32{"": {1, 2, 3}, "bytes": {2, 3}} {
		h := &Handover{Ends: []int32{2, 3}, Texts: map[int32]string{2: "two", 3: "three"}}
		h.With(&Handover{Tokenizer: name, Ends: []int32{1, 2}, Texts: map[int32]string{1: "one"}})
		if !slices.Equal(h.Ends, want) || len(h.Texts) != len(want) {
			t.Errorf("%q: %+v", name, h)
		}
		h.With(nil)
		if got := strings.Join(h.Named(h.Ends[len(want)-2:]), " and "); got != "two (2) and three (3)" {
			t.Errorf("they are %s", got)
		}
	}
	for doc, want := range map[string]bool{`{"handover": {"ends": [4]}}`: true, `{}`: false, `[]`: false} {
		h := HandedOver(from(func(m *checkpoint.Manifest) { m.Data = []byte(doc) }))
		if (h != nil) != want || want && !slices.Equal(h.Ends, []int32{4}) {
			t.Errorf("%s hands over %+v", doc, h)
		}
	}
	if got := []string{idsText(nil), idsText([]int32{4}), idsText([]int32{4, 2})}; !slices.Equal(got,
		[]string{"null", "4", "[4, 2]"}) {
		t.Errorf("ids are %q", got)
	}
}

// files are the texts of a model's directory as a handover has them.
func files(t *testing.T, s *Source) map[string]string {
	t.Helper()
	f, err := s.TextFiles(s.Config.Raw())
	ok(t, err)
	dir := t.TempDir()
	ok(t, f.WriteTo(dir))
	return traintest.Files(t, dir)
}

// A model that is written has the files with which other programs use it as the run did: ends of trained turns,
// templates,
// and the tokenizer of the run.
func TestFilesOfAHandover(t *testing.T) {
	dir := traintest.WriteModel(t, map[string]any{"eos_token_id": 7, "bos_token_id": 5})
	s := open(t, dir)
	if f := files(t, s); f["config.json"] != string(s.Config.Raw()) || f[GenerationName] != "" {
		t.Errorf("without a handover: %q", f)
	}
	s.Hands = &Handover{Ends: []int32{7}}
	if f := files(t, s); f[GenerationName] != "" {
		t.Errorf("ends that config.json lists: %q", f[GenerationName])
	}
	if note, err := s.EndsNote(); note != "" || err != nil {
		t.Errorf("it notes %q, %v", note, err)
	}
	s.Hands = &Handover{Ends: []int32{7, 9}, Texts: map[int32]string{9: "<end>"}}
	flat := func(text string) string { return strings.Join(strings.Fields(text), "") }
	if f := files(t, s); flat(f[GenerationName]) != `{"bos_token_id":5,"eos_token_id":[7,9]}` {
		t.Errorf("an end more: %q", f[GenerationName])
	}
	if note, err := s.EndsNote(); !strings.Contains(note, "end with <end> (9), at which") || err != nil {
		t.Errorf("it notes %q, %v", note, err)
	}
	traintest.Write(t, filepath.Join(dir, GenerationName), `{"top_k": 3, "eos_token_id": 2}`)
	if f := files(t, s); flat(f[GenerationName]) != `{"top_k":3,"eos_token_id":[2,7,9]}` {
		t.Errorf("with a file of the model: %q", f[GenerationName])
	}
	traintest.Write(t, filepath.Join(dir, "chat_template.jinja"), "old")
	traintest.Write(t, filepath.Join(dir, "tokenizer_config.json"), `{"a": 1, "chat_template": "old"}`)
	if f := files(t, s); f["chat_template.jinja"] != "old" {
		t.Errorf("templates of the model: %q", f)
	}
	s.Hands = &Handover{Templates: map[string]string{"default": "new"}}
	if f := files(t, s); f["chat_template.jinja"] != "new" || flat(f["tokenizer_config.json"]) != `{"a":1}` {
		t.Errorf("templates of the run: %q", f)
	}
	ok(t, s.CheckSidecars())
	traintest.Write(t, filepath.Join(dir, "tokenizer.json"), "{}")
	s.Hands = &Handover{Tokenizer: "bytes", Ends: []int32{9}}
	f := files(t, s)
	if f["tokenizer.json"] == "{}" || flat(f[GenerationName]) != `{"bos_token_id":null,"eos_token_id":[256,9]}` ||
		!strings.Contains(flat(f["config.json"]), `"eos_token_id":[256,9]`) ||
		!strings.Contains(flat(f["config.json"]), `"pad_token_id":null`) {
		t.Errorf("with another tokenizer: %q and %q", f[GenerationName], f["config.json"])
	}
	if note, err := s.EndsNote(); note != "" || err != nil {
		t.Errorf("with another tokenizer it notes %q, %v", note, err)
	}
}

// The templates of a directory are those of a run if all of its copies are.
func TestTemplatesOfADirectory(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		want  bool
	}{
		{nil, false},
		{map[string]string{"chat_template.jinja": "a"}, true},
		{map[string]string{"chat_template.jinja": "b"}, false},
		{map[string]string{"tokenizer_config.json": `{"chat_template": "a"}`}, true},
		{map[string]string{"tokenizer_config.json": `{"chat_template": "b"}`, "chat_template.jinja": "a"}, false},
		{map[string]string{"chat_template.json": `{"chat_template": "a"}`}, true},
		{map[string]string{"chat_template.json": `{"chat_template": "b"}`, "chat_template.jinja": "a"}, false},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			traintest.Write(t, filepath.Join(dir, name), text)
		}
		if same, err := hasTemplates(dir, map[string]string{"default": "a"}); same != c.want || err != nil {
			t.Errorf("%v: %v, %v", c.files, same, err)
		}
	}
	for _, name := range []string{"tokenizer_config.json", "chat_template.json"} {
		dir := t.TempDir()
		traintest.Write(t, filepath.Join(dir, name), "{")
		if _, err := hasTemplates(dir, nil); err == nil {
			t.Errorf("a %s that is cut short is read", name)
		}
	}
}

// The settings of texts are what the user asks for and, with a checkpoint, what the run had.
func TestSettings(t *testing.T) {
	env := traintest.NewEnv(t)
	dir := t.TempDir()
	kwargs := data.Kwargs{"a": 1, "b": 2}
	run := &runfile.Config{Tokenizer: "bytes", ChatTemplate: "model", ChatTemplateKwargs: data.Kwargs{"b": 3, "c": 4}}
	conversations := *run
	conversations.ChatTemplate = "conversations"
	at := from(func(*checkpoint.Manifest) {})
	for i, c := range []struct {
		s                   Source
		tokenizer, template string
		want                [2]string
		kwargs              int
	}{
		{Source{}, "auto", "", [2]string{"auto", ""}, 2},
		{Source{Run: run, runDir: dir}, "auto", "auto", [2]string{"auto", "auto"}, 2},
		{Source{Run: &conversations, runDir: dir}, "auto", "auto", [2]string{"auto", "conversations"}, 2},
		{Source{Run: run, From: at, runDir: dir}, "auto", "", [2]string{"bytes", "model"}, 3},
		{Source{Run: run, From: at, runDir: dir}, "x", "y", [2]string{"x", "y"}, 2},
	} {
		got, err := c.s.Settings(env, c.tokenizer, c.template, kwargs)
		if err != nil || got.Tokenizer != c.want[0] || got.ChatTemplate != c.want[1] ||
			len(got.ChatTemplateKwargs) != c.kwargs {
			t.Errorf("%d: %+v, %v", i, got, err)
		}
	}
	file := filepath.Join(t.TempDir(), "t.jinja")
	traintest.Write(t, file, "x")
	for key, run := range map[string]*runfile.Config{"tokenizer": {Tokenizer: file, ChatTemplate: "auto"},
		"chat_template": {Tokenizer: "bytes", ChatTemplate: file}} {
		s := Source{Run: run, From: at, runDir: dir}
		if _, err := s.Settings(env, "auto", "auto", nil); !fails(err, key) {
			t.Errorf("a %s outside of the run's directory: %v", key, err)
		}
		s.Hands = &Handover{Templates: map[string]string{"default": "x"}}
		if _, err := s.Settings(env, "bytes", "auto", nil); err != nil {
			t.Errorf("a %s that the checkpoint has: %v", key, err)
		}
	}
}

// A model in float16 or MXFP4 is written in another type, which the run says. Others keep theirs, or become bf16.
func TestTypesOfAModel(t *testing.T) {
	for name, c := range map[string]struct {
		s    Source
		want tensor.DType
		note string
	}{
		"float32":                  {want: tensor.F32},
		"bfloat16":                 {want: tensor.BF16},
		"float16":                  {want: tensor.BF16, note: "the model is in float16"},
		"bfloat16, halves in it":   {s: Source{isHalf: true}, want: tensor.BF16, note: "the model is in float16"},
		"float32, halves in it":    {s: Source{isHalf: true}, want: tensor.F32},
		"bfloat16, MXFP4 in it":    {s: Source{isMXFP4: true}, want: tensor.BF16, note: "the model has experts in MXFP4"},
		"float32, and MXFP4 in it": {s: Source{isMXFP4: true}, want: tensor.F32, note: "the model has experts in MXFP4"},
	} {
		dtype, _, _ := strings.Cut(name, ",")
		c.s.Config = open(t, traintest.WriteConfig(t, map[string]any{"torch_dtype": dtype})).Config
		if got := c.s.ExportType(); got != c.want || !strings.HasPrefix(c.s.FormatNote(), c.note) ||
			c.note == "" && c.s.FormatNote() != "" {
			t.Errorf("%s: %v, %q", name, got, c.s.FormatNote())
		}
	}
}

// hours is a clock that is an hour later each time that it is read.
type hours struct{ n int }

func (h *hours) Now() time.Time {
	h.n++
	return time.Unix(int64(3600*h.n), 0)
}

func (h *hours) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

// A bar of a file is shown until all of it is there.
func TestTransferBars(t *testing.T) {
	var out strings.Builder
	env := traintest.NewEnv(t)
	env.Progress, env.Terminal, env.Tests.Watch = &out, true, &hours{}
	progress, end := TransferBars(env, "downloading ")
	progress("a", 1, 2)
	progress("b", 1, 4)
	progress("a", 2, 2)
	end()
	if !strings.Contains(out.String(), "downloading a") || !strings.Contains(out.String(), "downloading b") {
		t.Errorf("it shows %q", out.String())
	}
}

// Rows that cannot be read are skipped, which a line says. Data for evaluation come apart, or are held out.
func TestPrepareRun(t *testing.T) {
	env, lines := heard(t)
	r, err := open(t, traintest.WriteModel(t, nil)).OpenReader(&runfile.Config{Tokenizer: "bytes"})
	ok(t, err)
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	traintest.Write(t, bad, "{\"text\": \"good\"}\n{\"text\": 1}\n{\"text\": \"good\"}\n")
	sources := []data.Source{{Path: traintest.Corpus(t), Type: "text", Weight: 1}}
	prepare := func(c *runfile.Config) (training, held int) {
		t.Helper()
		a, b, err := PrepareRun(t.Context(), env, c, r)
		ok(t, err)
		if b != nil {
			held = b.Len()
			ok(t, b.Close())
		}
		training = a.Len()
		ok(t, a.Close())
		return training, held
	}
	if training, held := prepare(&runfile.Config{Datasets: sources}); training != 120 || held != 0 {
		t.Errorf("%d documents, and %d for evaluation", training, held)
	}
	if training, held := prepare(&runfile.Config{Datasets: sources, ValSize: 20, Seed: 1}); training != 100 || held != 20 {
		t.Errorf("%d documents, and %d are held out", training, held)
	}
	c := &runfile.Config{Datasets: sources}
	c.Eval.Datasets = sources
	if training, held := prepare(c); training != 120 || held != 120 {
		t.Errorf("%d documents, and %d for evaluation", training, held)
	}
	for _, change := range []func(*runfile.Config){
		func(c *runfile.Config) { c.Datasets = []data.Source{{Path: "/gone", Type: "text"}} },
		func(c *runfile.Config) { c.Eval.Datasets = []data.Source{{Path: "/gone", Type: "text"}} },
		func(c *runfile.Config) { c.Eval.Datasets, c.ValSize = nil, 1e6 },
	} {
		c := *c
		change(&c)
		if _, _, err := PrepareRun(t.Context(), env, &c, r); err == nil {
			t.Errorf("%+v is read", c)
		}
	}
	skipped := data.Source{Path: bad, Type: "text", Weight: 1, BadRows: data.SkipBadRows}
	prepare(&runfile.Config{Datasets: []data.Source{skipped}})
	if got := strings.Join(*lines, " "); !strings.Contains(got, "skipped 1 bad row of the training data") {
		t.Errorf("it tells %q", got)
	}
}

// A checkpoint of another model, or with other frozen tensors, is refused.
func TestCheckpointsOfOtherModels(t *testing.T) {
	s := open(t, traintest.WriteModel(t, nil))
	own := from(func(m *checkpoint.Manifest) { m.Model = checkpoint.Identify(s.Model, s.Config.Raw(), "") })
	ok(t, s.ReadAs(own))
	s.From = own
	ok(t, s.CheckWeights(t.Context()))
	other := *own.Manifest
	other.Model.ConfigSHA256 = "x"
	if err := s.CheckIsOf(&checkpoint.Checkpoint{Manifest: &other}); !fails(err, "is not of model") {
		t.Errorf("another configuration: %v", err)
	}
	both := other
	both.Model.Frozen = []string{s.Model.Tensors()[0].Name}
	if err := s.CheckIsOf(&checkpoint.Checkpoint{Manifest: &both}); !fails(err, "is not of model") {
		t.Errorf("another configuration, with frozen tensors: %v", err)
	}
	frozen := *own.Manifest
	frozen.Model.Frozen = []string{s.Model.Tensors()[0].Name}
	if err := s.CheckIsOf(&checkpoint.Checkpoint{Manifest: &frozen}); !fails(err, "has other frozen tensors") {
		t.Errorf("other frozen tensors: %v", err)
	}
	s.From = &checkpoint.Checkpoint{Manifest: &other}
	if err := s.CheckWeights(t.Context()); err == nil {
		t.Error("a checkpoint of another model has the weights")
	}
}

// opened is a session for a model, whose store has weights as init and a seed say.
func opened(t *testing.T, s *Source, init string, seed uint64) *session.Session {
	t.Helper()
	env := traintest.NewEnv(t)
	dev, err := env.OpenDevices("auto")
	ok(t, err)
	n, err := runfile.NumericsOf("f32", "f32")
	ok(t, err)
	n.SequenceLen = 16
	p, err := env.FitPlan(t.Context(), s.Model, n, 1, runfile.Sizes{}, dev.Info(), runfile.Memory{},
		func(plan.Numerics) plan.Outputs { return plan.Outputs{LogitRows: 1} })
	ok(t, err)
	of, err := env.OpenSession(t.Context(), p, dev, session.SessionOptions{
		Fill: func(ctx context.Context, of *session.Session) error { return Fill(ctx, of, s, init, seed) }})
	ok(t, err)
	t.Cleanup(func() { ok(t, errors.Join(of.Close(), dev.Close())) })
	return of
}

// logits returns those that follow a text.
func logits(t *testing.T, of *session.Session) []float32 {
	t.Helper()
	ids := []int32{'a', 'm', 'i', 'l', 'l'}
	b, err := data.NewBatch([]data.Example{{InputIDs: ids, Labels: slices.Repeat([]int32{data.Ignore}, len(ids))}}, 16)
	ok(t, err)
	all, err := of.Engine.Logits(t.Context(), session.BatchOf([]data.MicroBatch{b}), len(ids)-1)
	ok(t, err)
	return slices.Clone(all[0])
}

// Weights go into the store as the model has them, or at random by the seed.
func TestFill(t *testing.T) {
	dir := traintest.WriteConfig(t, nil)
	random := open(t, dir)
	first := logits(t, opened(t, random, "random", 3))
	if !slices.Equal(first, logits(t, opened(t, random, "random", 3))) ||
		slices.Equal(first, logits(t, opened(t, random, "random", 4))) {
		t.Error("random weights are not those of a seed")
	}
	traintest.WriteWeights(t, dir, 3) // at random by the same seed
	if !slices.Equal(first, logits(t, opened(t, open(t, dir), "pretrained", 0))) {
		t.Error("the weights are not those of the model")
	}
}

// A model without such tensors carries nothing, and a run that has carried some is refused with it.
func TestNothingIsCarried(t *testing.T) {
	s := open(t, traintest.WriteModel(t, nil))
	env, lines := heard(t)
	ok(t, s.Carry(t.Context(), env))
	if len(*lines) > 0 || s.Carried.SHA256 != "" || s.Carried.has("x") {
		t.Errorf("%+v is carried: %q", s.Carried, *lines)
	}
	for want, of := range map[string]string{"": "", "have changed in": "x"} {
		err := s.CarryAs(t.Context(), env, from(func(m *checkpoint.Manifest) { m.Model.CarriedSHA256 = of }))
		if !fails(err, want) {
			t.Errorf("of a run that carries %q: %v", of, err)
		}
	}
	broken := errors.New("no disk")
	at := from(func(m *checkpoint.Manifest) { m.Model.CarriedSHA256 = "x" })
	if err := s.FindAs(t.Context(), at, func() error { return broken }); !errors.Is(err, broken) ||
		!strings.HasSuffix(err.Error(), "put the model back as it was") {
		t.Errorf("tensors that cannot be read: %v", err)
	}
	if err := s.FindAs(t.Context(), at, func() error { s.Carried.SHA256 = "x"; return nil }); err != nil {
		t.Errorf("the tensors of the run: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.FindAs(ended, at, func() error { return broken }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
	ok(t, s.ReadConstants(s.Model))
	if specs, values := s.InitialConstants(); len(specs) > 0 || len(values) > 0 {
		t.Errorf("constants %v", specs)
	}
}

// carries makes a model whose blocks have a scalar, which is carried.
func carries(t *testing.T) string {
	t.Helper()
	return traintest.WriteModel(t, traintest.RowsConfig)
}

// A model with constants carries them: a run knows them by a checksum, and finds out when they have changed.
func TestConstantsAreCarried(t *testing.T) {
	dir := carries(t)
	s := open(t, dir)
	env, lines := heard(t)
	ok(t, s.Carry(t.Context(), env))
	n := len(s.Model.ConstantTensors())
	if n == 0 || len(s.Carried.Tensors) != n || s.Carried.Bytes != int64(4*n) || len(s.Carried.SHA256) != 64 ||
		!strings.Contains(strings.Join(*lines, " "), "are carried") {
		t.Fatalf("of %d constants %+v is carried: %q", n, s.Carried, *lines)
	}
	if specs, _ := s.InitialConstants(); len(specs) > 0 {
		t.Errorf("constants that are carried are made: %v", specs)
	}
	ok(t, s.ReadConstants(s.Model))
	if len(s.Model.Constants) == 0 {
		t.Error("constants are not read")
	}
	at := from(func(m *checkpoint.Manifest) { m.Model.CarriedSHA256 = s.Carried.SHA256 })
	ok(t, open(t, dir).CarryAs(t.Context(), env, at))
	out := filepath.Join(t.TempDir(), "out")
	w, err := hf.CreateModel(out, s.Carried.Tensors, hf.WriteOptions{})
	ok(t, err)
	ok(t, s.WriteCarried(t.Context(), w))
	w.Abort()
	random := open(t, traintest.WriteConfig(t, traintest.RowsConfig))
	ok(t, random.ReadConstants(random.Model))
	if specs, values := random.InitialConstants(); len(specs) != n || len(values) != n || random.Model.Constants != nil {
		t.Errorf("without weights there are %d constants", len(specs))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open(t, dir).CarryAs(ended, env, at); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// Frozen tensors of an export are the model's numbers where what is stored is these, rounded, and else what is stored.
func TestFrozenBase(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	s := open(t, dir)
	stored := func(int) (model.Values, error) { return model.Values{High: []uint16{0}}, nil }
	expect := func(what, want string, is bool) *FrozenBase {
		t.Helper()
		base, why, err := s.OpenFrozen(t.Context(), stored)
		ok(t, err)
		if (base != nil) != is || !strings.Contains(why, want) || want == "" && why != "" {
			t.Errorf("%s: %v, %q", what, base, why)
		}
		return base
	}
	expect("nothing is frozen", "", false)
	ok(t, s.Configure(&runfile.Config{TrainOnly: []string{"*layers.0*"}}))
	var none *FrozenBase
	if none.Close(); none.WhyNot() != "" || none.Has(&s.Model.Tensors()[0]) || none.Over(nil) != nil {
		t.Error("no base has tensors")
	}
	expect("no base", "does not say which model", false)
	s.Base = &checkpoint.Base{Init: "random"}
	expect("random", "", false)
	s.Base = &checkpoint.Base{WeightsSHA256: "x"}
	expect("other weights", "are others than those that the run began with", false)
	sum, err := hf.FingerprintOf(t.Context(), dir)
	ok(t, err)
	s.Base.WeightsSHA256 = sum
	base := expect("the weights", "", true)
	defer base.Close()
	exact, _, err := s.OpenFrozen(t.Context(), func(int) (model.Values, error) { return model.Values{}, nil })
	if exact != nil || err != nil {
		t.Errorf("of fp32 numbers there is a base, %v", err)
	}
	for _, x := range s.Model.Tensors() {
		trained := strings.Contains(x.Name, "layers.0")
		if base.Has(&x) == trained {
			t.Errorf("%s is frozen: %v", x.Name, !trained)
		}
		part, field := x.Pieces[0].Part, x.Pieces[0].Field
		numbers := make([]float32, 4)
		ok(t, base.read(part, field, numbers, 0))
		rounded := func(change float32) model.Fields {
			return func(_, _ int, dst []float32, first int64) error {
				for i := range dst {
					high, _ := tensor.SplitF32(numbers[i])
					dst[i] = tensor.F32FromBF16(high) + change
				}
				return nil
			}
		}
		got := make([]float32, 4)
		ok(t, base.Over(rounded(0))(part, field, got, 0))
		isRounded := slices.ContainsFunc(numbers, func(x float32) bool { _, low := tensor.SplitF32(x); return low != 0 })
		if slices.Equal(got, numbers) == (trained && isRounded) {
			t.Errorf("%s is exported as %v, and is %v in the model", x.Name, got, numbers)
		}
		before := base.WhyNot()
		ok(t, base.Over(rounded(1))(part, field, got, 0))
		if slices.Equal(got, numbers) || (base.WhyNot() == before) != trained {
			t.Errorf("%s is other than the model's, and exported as %v; %q", x.Name, got, base.WhyNot())
		}
	}
	broken := func(int, int, []float32, int64) error { return fs.ErrNotExist }
	if err := base.Over(broken)(0, 0, make([]float32, 1), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is stored cannot be read: %v", err)
	}
	ok(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	expect("no weights", "cannot be read", false)
	env, lines := heard(t)
	if WarnOfFrozen(env, "why"); len(*lines) != 1 || !strings.HasSuffix((*lines)[0], ": why") {
		t.Errorf("it warns %q", *lines)
	}
}

// A run hands over the tokens that end its texts, and its template where the files of its model do not have that.
func TestHandOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jinja")
	traintest.Write(t, file, traintest.TurnTemplate)
	talk := filepath.Join(t.TempDir(), "talk.jsonl")
	traintest.Write(t, talk,
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n")
	for _, c := range []struct {
		key       string
		has       bool // the model has the template
		templates bool
	}{{"auto", true, false}, {file, false, true}, {file, true, true}} {
		s := open(t, chatModel(t, c.has))
		run := &runfile.Config{Tokenizer: "auto", ChatTemplate: c.key}
		r, err := s.OpenReader(&runfile.Config{Tokenizer: "bytes", ChatTemplate: c.key})
		ok(t, err)
		d, err := Prepare(t.Context(), traintest.NewEnv(t), "the data", []data.Source{{Path: talk, Type: "messages",
			Weight: 1}}, r)
		ok(t, err)
		h, err := s.HandOver(run, r, d)
		ok(t, errors.Join(err, d.Close()))
		if (h.Templates != nil) != c.templates || c.templates && h.Templates["default"] != traintest.TurnTemplate ||
			h.Tokenizer != "" || len(h.Texts) != len(h.Ends) || slices.Contains(h.Ends, 256) {
			t.Errorf("%s, in the model %v: it hands over %+v", c.key, c.has, h)
		}
	}
	s := open(t, traintest.WriteModel(t, nil))
	r, err := s.OpenReader(&runfile.Config{Tokenizer: "bytes"})
	ok(t, err)
	d, err := Prepare(t.Context(), traintest.NewEnv(t), "the data", []data.Source{{Path: traintest.Corpus(t),
		Type: "text", Weight: 1}}, r)
	ok(t, err)
	h, err := s.HandOver(&runfile.Config{Tokenizer: "bytes"}, r, d)
	ok(t, errors.Join(err, d.Close()))
	if h.Tokenizer != "bytes" || h.Templates != nil || !slices.Equal(h.Ends, []int32{256}) {
		t.Errorf("plain texts hand over %+v", h)
	}
}

// A tokenizer that is a file of another name is written under the name that programs read.
func TestTokenizerFileIsHandedOver(t *testing.T) {
	spec, err := os.ReadFile(filepath.Join("..", "..", "data", "tokenizer", "testdata", "smollm2.json"))
	ok(t, err)
	file := filepath.Join(t.TempDir(), "tok.json")
	traintest.Write(t, file, string(spec))
	few := traintest.WriteModel(t, map[string]any{"vocab_size": 561})
	traintest.Write(t, filepath.Join(few, "tokenizer.json"), string(spec))
	if _, err := open(t, few).OpenTokenizer("auto"); !fails(err, `--add-tokens "<|eos|>"`) {
		t.Errorf("561 rows for 562 tokens: %v", err)
	}
	s := open(t, traintest.WriteModel(t, map[string]any{"vocab_size": 562}))
	s.Hands = &Handover{Tokenizer: file}
	if f := files(t, s); f["tokenizer.json"] != string(spec) {
		t.Errorf("tokenizer.json has %d bytes of %d", len(f["tokenizer.json"]), len(spec))
	}
}

// The directory of a run stands for the model that it has written, which is told.
func TestOpenTrainedModelOfARun(t *testing.T) {
	env, lines := heard(t)
	dir := t.TempDir()
	at := filepath.Join(dir, "model")
	ok(t, os.Rename(traintest.WriteModel(t, nil), at))
	for _, name := range []string{dir, at} {
		s, err := OpenTrained(t.Context(), env, name)
		if err != nil || s.Dir != at || s.From != nil || len(*lines) != 1 || (*lines)[0] != "using "+at {
			t.Errorf("%s opens %+v, %v; it tells %q", name, s, err, *lines)
		}
	}
	s, err := OpenToExport(t.Context(), env, at, "")
	if err != nil || s.Dir != at {
		t.Errorf("to export, %+v, %v", s, err)
	}
}
