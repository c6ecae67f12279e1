package train

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
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// source is a model directory and what was read from it.
type source struct {
	dir    string
	id     string // ORG/NAME, if the hub's cache has dir; "" for a path
	config *hf.Config
	model  *model.Model

	carried carried          // what carry has found
	base    *checkpoint.Base // of the run, see baseOf; nil: no run

	// The weights of dir are in float16, or some are in MXFP4, as far as checkWeights has seen them.
	isHalf, isMXFP4 bool

	from  *checkpoint.Checkpoint // that has the weights; nil: dir has them
	run   *runfile.Config        // that they are of, as resolved; nil: not known
	hands *handover              // to a model that is written; nil: what dir has goes with it
	// runDir is the directory that run was read from.
	runDir string
}

// openModel reads the model that a path or a hub id names.
func openModel(ctx context.Context, env *Env, name string) (*source, error) {
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
	src := &source{dir: dir, config: c, model: m}
	if repo, ok := hub.Parse(hub.Model, name); ok && dir != name {
		src.id = repo.ID
	}
	return src, nil
}

// configure makes the model what the run file asks for.
func (s *source) configure(c *runfile.Config) (err error) {
	s.model, err = configured(s.model, c)
	return err
}

// configured is a model with its tensors in groups and with a load-balancing loss, as the run file asks for.
func configured(m *model.Model, c *runfile.Config) (*model.Model, error) {
	m, err := inGroups(m, c.TensorGroups())
	if err != nil {
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
func resolveModel(ctx context.Context, env *Env, name string) (string, error) {
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
	return hf.ResolveModel(ctx, env.hub(), name)
}

// hub is the hub that the environment describes, whose downloads show their progress.
func (e *Env) hub() *hub.Hub {
	h := hub.FromEnv()
	h.FreeBytes = vfs.OS{}.FreeBytes
	h.Progress, _ = e.transferBars("downloading ")
	return h
}

// transferBars shows a bar for each file that is transferred. end removes those of files that have not arrived.
func (e *Env) transferBars(what string) (progress func(file string, done, total int64), end func()) {
	bars := map[string]*console.Bar{}
	progress = func(file string, done, total int64) {
		if bars[file] == nil {
			bars[file] = e.bar(what + file)
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

// checkWeights finds weights that are missing, or of another model, before the data are tokenized. It reads their
// names and shapes, and a head that has to be the embedding.
func (s *source) checkWeights(ctx context.Context) error {
	if s.from != nil {
		return s.checkIsOf(s.from)
	}
	w, err := s.model.OpenWeights(s.dir)
	if err != nil {
		return err
	}
	for _, t := range s.model.Tensors() {
		info, _ := w.Info(t.Name)
		s.isHalf = s.isHalf || info.DType == tensor.F16
		s.isMXFP4 = s.isMXFP4 || info.Type == hf.MXFP4
	}
	return errors.Join(s.model.Check(ctx, w), w.Close())
}

// formatNote says that a model in float16 or MXFP4 is written in another type; it is empty for other models.
func (s *source) formatNote() string {
	if s.isMXFP4 {
		return fmt.Sprintf("the model has experts in MXFP4: the run reads them as bf16, which is exact, and writes its model in "+
			"%v; millrace export writes MXFP4 with --dtype mxfp4", s.exportType())
	}
	if s.exportType() != tensor.BF16 || !s.isHalf && s.config.DType() != tensor.F16 {
		return ""
	}
	return "the model is in float16, and the run writes it in bf16, which has 3 bits less for each weight; millrace export " +
		"--checkpoint writes its exact weights with --dtype f32, and float16 with --dtype f16"
}

// checkSidecars finds files that cannot go with what is trained, before hours are spent on it. It reads them.
func (s *source) checkSidecars() error {
	_, err := s.textFiles(s.config.Raw())
	return err
}

// openTokenizer opens what the key tokenizer names, and checks it against the vocabulary.
func (s *source) openTokenizer(name string) (tokenizer.Tokenizer, error) {
	t, err := s.readTokenizer(name)
	if err != nil || t.VocabSize() <= s.model.Vocab {
		return t, err
	}
	how := "they do not belong together; set tokenizer to the model's own"
	switch name {
	case "bytes":
		how += fmt.Sprintf(", or for random weights vocab_size to %d in config.json", t.VocabSize())
	case "auto", "":
		last := t.Decode([]int32{int32(t.VocabSize() - 1)}, false)
		how = fmt.Sprintf("tokens were added to %s without rows of the embedding; millrace import %s DIR --add-tokens %q "+
			"writes the model with a row for each of them", filepath.Join(s.dir, "tokenizer.json"), s.dir, last)
	}
	return nil, fmt.Errorf("tokenizer: it has %d tokens and the model's vocabulary %d: %s", t.VocabSize(), s.model.Vocab,
		how)
}

// readTokenizer opens what the key tokenizer names.
func (s *source) readTokenizer(name string) (tokenizer.Tokenizer, error) {
	switch name {
	case "bytes":
		return tokenizer.Bytes(), nil
	case "auto", "":
		name = s.dir
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

// tokenizerNote says that other programs may make other tokens of the same texts, or "".
func tokenizerNote(t tokenizer.Tokenizer) string {
	p, ok := t.(*tokenizer.Pipeline)
	if !ok || p.RebuiltClass() == "" {
		return ""
	}
	return fmt.Sprintf("the tokenizer's class is %s: tokens are those of its tokenizer.json, as in transformers 4; transformers 5 makes a tokenizer "+
		"of its own for that class, and may give some texts other tokens", p.RebuiltClass())
}

// reader turns rows into tokens.
type reader struct {
	tokenizer     tokenizer.Tokenizer
	renderer      data.Renderer
	trainOnPrompt bool
	hostBytes     int64 // memory.host; 0: what there is
}

// openReader opens the tokenizer and the chat template that the keys of a run file name.
func (s *source) openReader(c *runfile.Config) (r reader, err error) {
	defer letGarbageGrow(c.Memory.Host.N)() // a vocabulary is read from 10 MB of JSON
	r.trainOnPrompt, r.hostBytes = c.TrainOnPrompt, c.Memory.Host.N
	if r.tokenizer, err = s.openTokenizer(c.Tokenizer); err != nil {
		return r, err
	}
	r.renderer, err = s.openTemplate(c, r.tokenizer)
	return r, err
}

// openTemplate opens the template that the key chat_template names. auto takes the tokenizer's own, and renders plainly
// without one. conversations is the same for conversations only. model refuses a tokenizer without a template.
func (s *source) openTemplate(c *runfile.Config, tok tokenizer.Tokenizer) (_ data.Renderer, err error) {
	dir, file := cmp.Or(s.tokenizerDir(c.Tokenizer), s.dir), ""
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
	if s.run != nil && s.hands != nil && file == s.run.ChatTemplate {
		kept = s.hands.Templates
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
		ends, err := s.ends(c.Tokenizer, tok)
		if err != nil {
			return nil, err
		}
		chat.Stops = slices.Sorted(maps.Keys(ends))
	}
	return chat, nil
}

// prepare reads and tokenizes data sets, with progress, and says what was skipped.
func (e *Env) prepare(ctx context.Context, what string, sources []data.Source, r reader) (*data.Dataset, error) {
	cache := ""
	if e.CacheDir != "" {
		cache = filepath.Join(e.CacheDir, "tokens")
		if err := data.CheckCache(e.CacheDir, cache); err != nil {
			return nil, err
		}
	}
	bar := e.bar("tokenizing " + what)
	o := data.Options{Tokenizer: r.tokenizer, Renderer: r.renderer, CacheDir: cache, TrainOnPrompt: r.trainOnPrompt,
		Hub: e.hub(), Accounts: e.Accounts,
		Note: func(line string) { e.note("%s", line) }, Progress: func(p data.Progress) {
			bar.Set(p.ReadBytes, p.TotalBytes)
		}, MemoryBytes: e.tokenizingBytes(r.hostBytes)}
	restore := letGarbageGrow(r.hostBytes)
	d, err := data.Prepare(ctx, sources, o)
	restore()
	bar.End()
	if err != nil {
		return nil, err
	}
	if n, first := d.Skipped(); n > 0 {
		e.note("skipped %s of %s; the first: %s", spelling.Count(n, "bad row"), what, first)
	}
	return d, nil
}

// tokenizingBytes bounds the host memory that tokenizing may take: the budget or, without one, half of what is
// available.
func (e *Env) tokenizingBytes(hostBytes int64) int64 {
	if hostBytes > 0 {
		return hostBytes
	}
	free, _, err := hostmem.Available()
	if err != nil || e.MemoryGrows {
		return 0
	}
	return free / 2
}

// shareReading gives the readers of foreign files (tokenizers, chat templates and manifests) half of the memory that
// tokenizing may take. They read before the state of a run is in memory, or, as manifests in a run, in what its plan
// has for them.
func (e *Env) shareReading(hostBytes int64) { shared.Set(e.tokenizingBytes(hostBytes) / 2) }

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

// prepareRun reads a run's data. held is nil where nothing is evaluated on.
func (e *Env) prepareRun(ctx context.Context, c *runfile.Config, r reader) (training, held *data.Dataset, err error) {
	if len(c.Eval.Datasets) > 0 { // first, since they are few: what is wrong with them is found before the others take their hours
		if held, err = e.prepare(ctx, "the evaluation data", c.Eval.Datasets, r); err != nil {
			return nil, nil, err
		}
	}
	all, err := e.prepare(ctx, "the training data", c.Datasets, r)
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
