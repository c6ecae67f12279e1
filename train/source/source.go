package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hostmem"
	shared "github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// Source is a model directory and what was read from it.
type Source struct {
	Dir    string
	ID     string // ORG/NAME, if the hub's cache has dir; "" for a path
	Config *hf.Config
	Model  *model.Model

	Carried Carried          // what carry has found
	Base    *checkpoint.Base // of the run, see baseOf; nil: no run

	// The weights of dir are in float16, or some are in MXFP4, as far as checkWeights has seen them.
	isHalf, isMXFP4 bool

	From  *checkpoint.Checkpoint // that has the weights; nil: dir has them
	Run   *runfile.Config        // that they are of, as resolved; nil: not known
	Hands *Handover              // to a model that is written; nil: what dir has goes with it
	// runDir is the directory that run was read from.
	runDir string
}

// OpenModel reads the model that a path or a hub id names.
func OpenModel(ctx context.Context, env *session.Env, name string) (*Source, error) {
	dir, err := resolveModel(ctx, env, name)
	if err != nil {
		return nil, err
	}
	c, err := hf.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	m, err := model.New(c, env.Families...)
	if err != nil {
		return nil, err
	}
	src := &Source{Dir: dir, Config: c, Model: m}
	if repo, ok := hub.Parse(hub.Model, name); ok && dir != name {
		src.ID = repo.ID
	}
	return src, nil
}

// Configure makes the model what the run file asks for.
func (s *Source) Configure(c *runfile.Config) (err error) {
	if s.Model, err = Configured(s.Model, c); err == nil {
		err = checkDraws(s.Model)
	}
	return err
}

// Configured is a model with a critic's row, with its tensors in groups and with a load-balancing loss, as the run file
// asks for.
func Configured(m *model.Model, c *runfile.Config) (_ *model.Model, err error) {
	if c.Objective.Values() {
		if m, err = m.WithValues(); err != nil {
			return nil, err
		}
	}
	if m, err = inGroups(m, c.TensorGroups()); err != nil {
		return nil, err
	}
	return m.Balanced(c.RouterAuxLossCoef)
}

// inGroups is a model with its tensors in groups.
func inGroups(m *model.Model, g optim.Groups) (*model.Model, error) {
	if len(g.All) == 0 && len(g.TrainOnly) == 0 {
		return m, nil
	}
	var names []string
	for _, t := range m.Tensors() {
		names = append(names, t.Name)
	}
	if err := g.CheckNames(names); err != nil {
		return nil, err
	}
	return m.Grouped(g.Of)
}

// resolveModel finds the directory of a path or a hub id; what the hub has and this machine has not is downloaded
// into the hub's cache, where HF_HOME and its relatives say.
func resolveModel(ctx context.Context, env *session.Env, name string) (string, error) {
	if name == "" {
		return "", errors.New("model is missing: name a Hugging Face directory, or a hub id")
	}
	st, err := os.Stat(name)
	switch {
	case err == nil && !st.IsDir() && strings.EqualFold(filepath.Ext(name), ".gguf"):
		return "", fmt.Errorf("model %s: it is a GGUF file; use millrace import %s DIR, and name that directory", name, name)
	case err == nil && !st.IsDir():
		return "", fmt.Errorf("model %s: not a directory; name one with config.json and safetensors files", name)
	}
	return hf.ResolveModel(ctx, hubOf(env), name)
}

// hubOf is the hub that the environment describes, whose downloads show their progress.
func hubOf(e *session.Env) *hub.Hub {
	h := hub.FromEnv()
	h.FreeBytes = vfs.OS{}.FreeBytes
	h.Progress, _ = TransferBars(e, "downloading ")
	return h
}

// TransferBars shows a bar for each file that is transferred. end removes those of files that have not arrived.
func TransferBars(e *session.Env, what string) (progress func(file string, done, total int64), end func()) {
	bars := map[string]session.Bar{}
	progress = func(file string, done, total int64) {
		if bars[file] == nil {
			bars[file] = e.Bar(what + file)
		}
		bars[file].Set(done, total)
		if done == total {
			bars[file].End()
			delete(bars, file)
		}
	}
	return progress, func() {
		for _, bar := range bars {
			bar.End()
		}
	}
}

// CheckWeights finds weights that are missing, or of another model, before the data are tokenized. It reads their
// names and shapes, and a head that has to be the embedding.
func (s *Source) CheckWeights(ctx context.Context) error {
	if s.From != nil {
		return s.CheckIsOf(s.From)
	}
	w, err := s.Model.OpenWeights(s.Dir)
	if err != nil {
		return err
	}
	for _, t := range s.Model.Tensors() {
		info, _ := w.Info(t.Name) // none of a score that is drawn
		s.isHalf = s.isHalf || info.DType == tensor.F16
		s.isMXFP4 = s.isMXFP4 || info.Type == hf.MXFP4
	}
	return errors.Join(s.Model.Check(ctx, w), w.Close())
}

// FormatNote says that a model in float16 or MXFP4 is written in another type; it is empty for other models.
func (s *Source) FormatNote() string {
	if s.isMXFP4 {
		return fmt.Sprintf("the model has experts in MXFP4: the run reads them as bf16, which is exact, and writes its model in "+
			"%v; millrace export writes MXFP4 with --dtype mxfp4", s.ExportType())
	}
	if s.ExportType() != tensor.BF16 || !s.isHalf && s.Config.DType() != tensor.F16 {
		return ""
	}
	return "the model is in float16, and the run writes it in bf16, which has 3 bits less for each weight; millrace export " +
		"--checkpoint writes its exact weights with --dtype f32, and float16 with --dtype f16"
}

// CheckSidecars finds files that cannot go with what is trained, before hours are spent on it. It reads them.
func (s *Source) CheckSidecars() error {
	_, err := s.TextFiles(s.Config.Raw())
	return err
}

// OpenTokenizer opens what the key tokenizer names, and checks it against the vocabulary.
func (s *Source) OpenTokenizer(name string) (tokenizer.Tokenizer, error) {
	t, err := s.ReadTokenizer(name)
	if err != nil || t.VocabSize() <= s.Model.Vocab {
		return t, err
	}
	how := "they do not belong together; set tokenizer to the model's own"
	switch name {
	case "bytes":
		how += fmt.Sprintf(", or for random weights vocab_size to %d in config.json", t.VocabSize())
	case "auto", "":
		last := t.Decode([]int32{int32(t.VocabSize() - 1)}, false)
		how = fmt.Sprintf("tokens were added to %s without rows of the embedding; millrace import %s DIR --add-tokens %q "+
			"writes the model with a row for each of them", filepath.Join(s.Dir, "tokenizer.json"), s.Dir, last)
	}
	return nil, fmt.Errorf("tokenizer: it has %d tokens and the model's vocabulary %d: %s", t.VocabSize(), s.Model.Vocab,
		how)
}

// ReadTokenizer opens what the key tokenizer names.
func (s *Source) ReadTokenizer(name string) (tokenizer.Tokenizer, error) {
	switch name {
	case "bytes":
		return tokenizer.Bytes(), nil
	case "auto", "":
		name = s.Dir
		fallthrough
	default:
		bpe, err := tokenizer.Load(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%w; or set tokenizer to another, or to bytes", err)
		case err != nil:
			return nil, fmt.Errorf("%w; download it again, or set tokenizer to another", err)
		}
		return bpe, nil
	}
}

// TokenizerNote says that other programs may make other tokens of the same texts, or "".
func TokenizerNote(t tokenizer.Tokenizer) string {
	p, ok := t.(*tokenizer.Pipeline)
	if !ok || p.RebuiltClass() == "" {
		return ""
	}
	return fmt.Sprintf("the tokenizer's class is %s: tokens are those of its tokenizer.json, as in transformers 4; transformers 5 makes a tokenizer "+
		"of its own for that class, and may give some texts other tokens", p.RebuiltClass())
}

// Reader turns rows into tokens.
type Reader struct {
	Tokenizer     tokenizer.Tokenizer
	Renderer      data.Renderer
	vocab         int // of the model
	trainOnPrompt bool
	HostBytes     int64                   // memory.host; 0: what there is
	Check         func([]data.Type) error // refuses types of data that the run cannot use; nil: none
	InTwos        bool                    // data.Options.InTwos
}

// OpenReader opens the tokenizer and the chat template that the keys of a run file name.
func (s *Source) OpenReader(c *runfile.Config) (r Reader, err error) {
	defer letGarbageGrow(c.Memory.Host.N)() // a vocabulary is read from 10 MB of JSON
	r.vocab, r.trainOnPrompt, r.HostBytes = s.Model.Vocab, c.TrainOnPrompt, c.Memory.Host.N
	r.Check = func(types []data.Type) error { return data.CheckObjective(types, "", objective.Needs{}) }
	if r.Tokenizer, err = s.OpenTokenizer(c.Tokenizer); err != nil {
		return r, err
	}
	r.Renderer, err = s.openTemplate(c, r.Tokenizer)
	return r, err
}

// openTemplate opens the template that the key chat_template names. auto takes the tokenizer's own, and renders plainly
// without one. conversations is the same for conversations only. model refuses a tokenizer without a template.
func (s *Source) openTemplate(c *runfile.Config, tok tokenizer.Tokenizer) (_ data.Renderer, err error) {
	dir, file := cmp.Or(s.tokenizerDir(c.Tokenizer), s.Dir), ""
	isForced, isForAll := false, true
	switch c.ChatTemplate {
	case "auto", "":
	case "conversations":
		isForAll = false
	case "model":
		isForced = true
	default:
		isForced, file = true, c.ChatTemplate
	}
	var kept map[string]string // by the run's checkpoint: the file may be another by now
	if s.Run != nil && s.Hands != nil && file == s.Run.ChatTemplate {
		kept = s.Hands.Templates
	}
	if _, err := os.Stat(file); file != "" && kept == nil && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("chat_template: there is no file %s; use auto, model, conversations, or the path of a "+
			"Jinja template", file)
	}
	var chat *data.Chat
	if kept != nil {
		chat, err = data.NewChatOf(dir, kept)
	} else {
		chat, err = data.NewChat(dir, file)
	}
	switch {
	case !isForced && errors.Is(err, data.ErrNoTemplate) && len(c.ChatTemplateKwargs) > 0:
		return nil, fmt.Errorf("chat_template_kwargs: %s has no chat template, so nothing would read them: leave them out, or "+
			"set chat_template to a file", dir)
	case !isForced && errors.Is(err, data.ErrNoTemplate):
		return data.Plain, nil
	case err != nil:
		return nil, fmt.Errorf("%w; correct it, or set chat_template to another", err)
	}
	if err := chat.SetKwargs(c.ChatTemplateKwargs); err != nil {
		return nil, err
	}
	chat.All, chat.LastTurn = isForAll, c.TrainOnLast
	if c.Tokenizer != "bytes" {
		ends, err := s.Ends(c.Tokenizer, tok)
		if err != nil {
			return nil, err
		}
		chat.Stops = slices.Sorted(maps.Keys(ends))
	}
	return chat, nil
}

// Prepare reads and tokenizes data sets, with progress, and says what was skipped.
func Prepare(ctx context.Context, e *session.Env, what string, sources []data.Source, r Reader) (*data.Dataset, error) {
	cache := ""
	if e.CacheDir != "" {
		cache = filepath.Join(e.CacheDir, "tokens")
		if err := data.CheckCache(e.CacheDir, cache); err != nil {
			return nil, err
		}
	}
	bar := e.Bar("tokenizing " + what)
	o := data.Options{Tokenizer: r.Tokenizer, Renderer: r.Renderer, CacheDir: cache, TrainOnPrompt: r.trainOnPrompt,
		InTwos: r.InTwos, Vocab: r.vocab,
		Hub: hubOf(e), Accounts: e.Accounts,
		Note: func(line string) { e.Note("%s", line) }, Progress: func(p data.Progress) {
			bar.Set(p.ReadBytes, p.TotalBytes)
		}, MemoryBytes: tokenizingBytes(e, r.HostBytes), Check: r.Check}
	restore := letGarbageGrow(r.HostBytes)
	d, err := data.Prepare(ctx, sources, o)
	restore()
	bar.End()
	if err != nil {
		return nil, err
	}
	if n, first := d.Skipped(); n > 0 {
		e.Note("skipped %s of %s; the first: %s", spelling.Count(n, "bad row"), what, first)
	}
	if line := d.EqualLine(); line != "" {
		e.Note("of %s %s", what, line)
	}
	if line := d.LabelLine(); line != "" {
		e.Note("%s: %s", what, line)
	}
	return d, nil
}

// tokenizingBytes bounds the host memory that tokenizing may take: the budget or, without one, half of what is
// available.
func tokenizingBytes(e *session.Env, hostBytes int64) int64 {
	if hostBytes > 0 {
		return hostBytes
	}
	free, _, err := hostmem.Available()
	if err != nil || e.MemoryGrows {
		return 0
	}
	return free / 2
}

// ShareReading gives the readers of foreign files (tokenizers, chat templates and manifests) half of the memory that
// tokenizing may take. They read before the state of a run is in memory, or, as manifests in a run, in what its plan
// has for them.
func ShareReading(e *session.Env, hostBytes int64) { shared.Set(tokenizingBytes(e, hostBytes) / 2) }

// tokenizingGCPercent lets the Go heap grow between collections while text becomes tokens. Then it has
// what is on its way, and garbage, in the tens of MB each; with the program's 25 a quarter of the time was spent on
// collecting.
const tokenizingGCPercent = 100

// letGarbageGrow makes collections of the Go heap rare until restore is called, as far as a budget of host memory
// allows (0: none is given) and $GOGC does not say otherwise. The garbage goes back to the system before a plan
// counts what is left.
func letGarbageGrow(hostBytes int64) (restore func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	percent := debug.SetGCPercent(tokenizingGCPercent)
	limit := debug.SetMemoryLimit(-1)
	if hostBytes > 0 && hostBytes < limit {
		debug.SetMemoryLimit(hostBytes)
	}
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// PrepareRun reads a run's data. held is nil where nothing is evaluated on.
func PrepareRun(ctx context.Context, e *session.Env, c *runfile.Config, r Reader) (
	training, held *data.Dataset, err error) {
	if len(c.Eval.Datasets) > 0 { // first, since they are few: what is wrong with them is found before the others take their hours
		if held, err = Prepare(ctx, e, "the evaluation data", c.Eval.Datasets, r); err != nil {
			return nil, nil, err
		}
	}
	all, err := Prepare(ctx, e, "the training data", c.Datasets, r)
	if err != nil {
		if held != nil {
			err = errors.Join(err, held.Close())
		}
		return nil, nil, err
	}
	if c.ValSize == 0 {
		return all, held, nil
	}
	if training, held, err = all.Split(c.ValSize, c.Seed); err != nil {
		return nil, nil, errors.Join(err, all.Close())
	}
	return training, held, nil
}

// ReadAs has the model laid out as in a checkpoint, which may have frozen tensors or a critic's row, and refuses a
// checkpoint of another model.
func (s *Source) ReadAs(from *checkpoint.Checkpoint) error {
	if err := s.ScoreAs(from); err != nil {
		return err
	}
	m, err := from.Manifest.Model.With(s.Model)
	if err != nil {
		return fmt.Errorf("%s: %w", from.Dir(), err)
	}
	s.Model = m
	if err = s.CheckIsOf(from); err == nil {
		return nil
	}
	valued, errOf := m.WithValues()
	if errOf != nil {
		return errOf
	}
	if s.Model = valued; s.CheckIsOf(from) == nil {
		return nil
	}
	s.Model = m
	return err
}

// CheckIsOf refuses a checkpoint of another model.
func (s *Source) CheckIsOf(from *checkpoint.Checkpoint) error {
	saved := from.Manifest.Model
	is := checkpoint.Identify(s.Model, s.Config.Raw(), saved.CarriedSHA256)
	if is.Is(saved) {
		return nil
	}
	if is.ConfigSHA256 == saved.ConfigSHA256 && !slices.Equal(is.Frozen, saved.Frozen) {
		return fmt.Errorf("%s has other frozen tensors; restore groups and train_only, or begin from the model that it "+
			"exports",
			from.Dir())
	}
	return fmt.Errorf("%s is not of model %s; name the directory that its run started from", from.Dir(), s.Dir)
}

// ExportType is the type of an exported model: that of the model it came from where that is F32 or BF16, else BF16.
func (s *Source) ExportType() tensor.DType { return ExportType(s.Config) }

// ExportType returns the type in which a configuration's model is exported.
func ExportType(c *hf.Config) tensor.DType {
	if c.DType() == tensor.F32 {
		return tensor.F32
	}
	return tensor.BF16
}
